r"""Optimisers beside correlated noise: cross-entropy of public requests after private trainings that differ in these.

    python -m studies.tables optimizers "$DOPPEL_DATA/smcalflow" --runs runs/optimizers \
        --out docs/results/optimizers.csv

The folder holds SMCalFlow's training file, whose requests play the private ones (one a unit), and ``valid``, which is
public: rates are chosen on its first half. Each cell is one ``fit`` of the command line, with its accounting and its
ledger, in a folder of its own. Of those with three seeds as many samples are drawn as ``valid`` has requests, and
compared with these. The same command again goes on with what was cut short, and the table is written anew after each
cell, from all that have finished. ``--cells`` names the cells to run, ``--list`` prints them.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import yaml
from scipy.signal import lfilter

from benchmarks._harness import machine
from commands.lightning.trained_model import trained_model
from commands.run.execution.code_copy import version
from commands.run_folder.places import ROOT
from commands.run_folder.stage_config import StageConfig
from datamodules.batches.cut import cut, micro_batch
from datamodules.batches.encoded import encode_examples
from datamodules.reading.example import Example
from datamodules.reading.examples import read_examples
from doppel.files import write_text
from doppel.privacy.bands import coefficients, relative_rmse
from doppel.privacy.optimizer import DPAdam
from doppel.privacy.spec import PrivacyArguments

EPSILON, BATCH_SIZE, EPOCHS, DIVISOR = 3.0, 512, 3, 16.0
#: What is kept of the comparison of samples.
OF_SAMPLES = ("mauve_minilm", "word_overlap", "distinct", "mean_words")


# ------------------------------------------------------------------------------------------------ optimisers
class PlainAdam(DPAdam):
    """AdamW, which the product refuses beside bands, with a linear warm-up of its own."""

    def __init__(self, params: Any, lr: float, warmup: int = 0) -> None:
        super().__init__(params, lr)
        self._warmup, self._taken = warmup, 0

    def bind(self, noise_scale: float, num_steps: int) -> None:
        """Stay AdamW."""

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step at the rate of the warm-up."""
        self._taken += 1
        rates = [group["lr"] for group in self.param_groups]
        for group in self.param_groups:
            group["lr"] *= min(1.0, self._taken / max(self._warmup, 1))
        loss = super().step(closure)
        for group, rate in zip(self.param_groups, rates, strict=True):
            group["lr"] = rate
        return loss


class CorrectedAdam(DPAdam):
    """AdamW-BC: the noise's known variance is taken from the second moment (Tang et al., 2024, arXiv 2312.14334).

    Args:
        params: Weights.
        lr: Rate.
        noise_ratio: Standard deviation of a step's own noise over that of independent noise: above 1 with bands.
        floor: Least root of the corrected moment, in standard deviations of the step's own noise.
    """

    def __init__(self, params: Any, lr: float, noise_ratio: float = 1.0, floor: float = 1.0) -> None:
        super().__init__(params, lr)
        self._noise_ratio, self._floor, self._own = noise_ratio, floor, 0.0

    def bind(self, noise_scale: float, num_steps: int) -> None:
        """Take the standard deviation of independent noise on a mean gradient."""
        self._own = noise_scale * self._noise_ratio

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step."""
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state |= {"mean": torch.zeros_like(weight), "square": torch.zeros_like(weight), "taken": 0}
                state["taken"] += 1
                mean = state["mean"].lerp_(weight.grad, 1.0 - beta1) / (1.0 - beta1 ** state["taken"])
                square = state["square"].lerp_(weight.grad**2, 1.0 - beta2) / (1.0 - beta2 ** state["taken"])
                least = (self._floor * self._own) ** 2
                weight.sub_(group["lr"] * mean / (square - self._own**2).clamp(min=least).sqrt())
        return None


# ------------------------------------------------------------------------------------------------ cells
@dataclass(frozen=True)
class Cell:
    """One training.

    Args:
        optimizer: ``AdamW``, ``AdamW, warm-up``, ``AdamW-BC`` or ``DPAdam``.
        rate: Its learning rate.
        bands: b.
        units: N.
        lora: Whether SmolLM2-135M is adapted, in place of the shipped base.
        seed: Of the subset, the order and the adapters; the noise and the groups of units are secret.
    """

    optimizer: str
    rate: float
    bands: int = 1
    units: int = 10_060
    lora: bool = False
    seed: int = 1

    @property
    def name(self) -> str:
        """Its folder."""
        kind = self.optimizer.replace(", ", "-")
        return f"{'lora-' if self.lora else ''}n{self.units}-{kind}-{self.rate:g}-b{self.bands}-s{self.seed}"

    @property
    def steps(self) -> int:
        """T."""
        return math.ceil(EPOCHS * self.units / BATCH_SIZE)

    @property
    def max_grad_norm(self) -> float:
        """C."""
        return 2.7 if self.lora else 10.0

    @property
    def is_sampled(self) -> bool:
        """Whether there are three seeds of it."""
        return sum(replace(cell, seed=self.seed) == self for cell in cells()) > 1


def cells() -> list[Cell]:
    """All there are, the cheapest question first."""
    dp, adam = "DPAdam", "AdamW"
    found = [Cell(dp, 2e-3, bands) for bands in (8, 1, 4, 16)]
    found += [Cell(adam, rate) for rate in (1e-3, 2e-3, 0.6e-3)]
    found += [Cell("AdamW-BC", rate, bands) for bands in (1, 8) for rate in (1e-3, 2e-3)]
    found += [Cell(f"{adam}, warm-up", 3e-3, 8)]
    found += [Cell(dp, rate, bands) for bands in (1, 8, 16) for rate in (1e-3, 4e-3)]
    found += [Cell(dp, rate, bands, 3_043) for bands in (1, 4) for rate in (2e-3, 1e-3, 4e-3)]
    found += [Cell(adam, rate, 1, 3_043) for rate in (1e-3, 2e-3)]
    found += [Cell(dp, 2e-3, bands, seed=seed) for seed in (2, 3) for bands in (8, 16, 1)]
    found += [Cell(adam, 1e-3, seed=seed) for seed in (2, 3)]
    found += [Cell(adam, 2e-3, lora=True), Cell(dp, 8e-3, 8, lora=True), Cell(dp, 4e-3, 8, lora=True)]
    return [*found, Cell(dp, 8e-3, 1, lora=True), Cell(dp, 8e-3, 16, lora=True), Cell(dp, 16e-3, 8, lora=True)]


def noise_multipliers(cell: Cell) -> tuple[float, float]:
    """σ of the cell, and that of independent noise at the same ε."""
    arguments = PrivacyArguments(
        target_epsilon=EPSILON, max_grad_norm=cell.max_grad_norm, epochs=[EPOCHS], bands=cell.bands
    )
    plan = arguments.plan(cell.units, BATCH_SIZE, [EPOCHS], "utterance", 1)
    return plan.noise_multiplier, plan.independent.noise_multiplier


def own_noise(cell: Cell) -> float:
    """Standard deviation of the noise of a step of its own over that of independent noise."""
    own, independent = noise_multipliers(cell)
    inverse = lfilter([1.0], list(coefficients(cell.bands)), np.eye(1, cell.steps)[0])
    return own / independent * float(np.sqrt((inverse**2).sum()))


def weights_noise(cell: Cell) -> float:
    """The noise of the weights over that of independent noise, as ``plan --bands`` tells it."""
    own, independent = noise_multipliers(cell)
    return own / independent * relative_rmse(cell.bands, [cell.steps])


# ------------------------------------------------------------------------------------------------ trainings
def configuration(cell: Cell, train: Path) -> dict[str, Any]:
    """What ``fit`` is given."""
    own: dict[str, Any] = {"lr": cell.rate}
    if cell.optimizer == "AdamW-BC":
        own["noise_ratio"] = round(own_noise(cell), 4)
    if cell.optimizer == "AdamW, warm-up":
        own["warmup"] = 10
    classes = {"DPAdam": "doppel.privacy.optimizer.DPAdam", "AdamW-BC": f"{__name__}.CorrectedAdam"}
    named = classes.get(cell.optimizer, f"{__name__}.PlainAdam")
    base: dict[str, Any] = {"base_model": str(ROOT / "models/base")}
    if cell.lora:
        base = {"base_model": str(ROOT / "models/smollm2-135m-requests"), "lora": {"rank": 16, "alpha": 32.0}}
    model = {**base, "loss_divisor": DIVISOR, "optimizer": {"class_path": named, "init_args": own}}
    privacy = {"target_epsilon": EPSILON, "max_grad_norm": cell.max_grad_norm, "epochs": [EPOCHS], "bands": cell.bands}
    data = {"train_path": str(train), "batch_size": BATCH_SIZE, "unit": "utterance"}
    return {
        "seed_everything": cell.seed,
        "model": {"class_path": "lightning_modules.causal_lm.UtteranceLM", "init_args": model},
        "trainer": {"precision": "auto", "max_epochs": EPOCHS},
        "privacy": privacy,
        "data": {"class_path": "datamodules.dialogue_data_module.DialogueDataModule", "init_args": data},
    }


def subset(cell: Cell, turns: Sequence[Example], folder: Path) -> Path:
    """A file of N of the requests, the same of every cell of this N; written once.

    Raises:
        SystemExit: There are fewer.
    """
    path = folder / f"train-{cell.units}.csv"
    if cell.units > len(turns):
        sys.exit(f"{cell.name}: the training file has {len(turns)} requests")
    if not path.exists():
        places = np.sort(np.random.default_rng(7).permutation(len(turns))[: cell.units])
        write_text(path, pd.DataFrame({"text": [turns[i].utterance for i in places]}).to_csv(index=False))
    return path


@torch.no_grad()
def losses(checkpoint: Path, rows: Sequence[Example], every: int) -> dict[str, float]:
    """Cross-entropy of public requests in nats a word, the end of a request a word, of both halves and of all.

    Args:
        checkpoint: Of a training.
        rows: The requests.
        every: One of so many is read.
    """
    module = trained_model(checkpoint, StageConfig.read(checkpoint.parents[1])).eval()
    encoded = encode_examples(rows, module.text_format)
    read = range(0, len(rows), every)
    found = np.full(len(rows), np.nan)
    for part in cut(encoded, [[place] for place in read], 8192):
        with torch.autocast("cpu", torch.bfloat16):
            loss = module.losses(micro_batch(encoded, part))
        found[[unit[0] for unit in part]] = loss.float().numpy() * DIVISOR
    words = np.where(np.isnan(found), 0, [len(row.utterance.split()) + 1 for row in rows])
    half = len(rows) // 2
    parts = {"_first_half": slice(half), "_second_half": slice(half, None), "": slice(None)}
    return {
        f"cross_entropy_per_word{name}": round(float(np.nansum(found[part]) / words[part].sum()), 4)
        for name, part in parts.items()
    }


def train(cell: Cell, turns: Sequence[Example], valid: Sequence[Example], runs: Path) -> None:
    """Train a cell, or go on with it, and write what was measured beside its folder.

    Raises:
        SystemExit: The training failed.
    """
    folder = runs / cell.name
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "fit.yaml"
    write_text(config, yaml.safe_dump(configuration(cell, subset(cell, turns, runs)), sort_keys=False))
    checkpoint, began = folder / "model/checkpoints/last.ckpt", time.monotonic()
    words = [sys.executable, str(ROOT / "cli.py"), "fit", "--config", str(config), "--run_dir", str(folder / "model")]
    words += ["--ckpt_path", "last"] if checkpoint.exists() else []
    with (folder / "log.txt").open("a", encoding="utf-8") as log:
        if subprocess.run(words, cwd=ROOT, check=False, stdout=log, stderr=log).returncode:
            sys.exit(f"{cell.name}: the training failed; see {folder / 'log.txt'}")
    found = losses(checkpoint, valid, max(1, len(valid) // 600) if cell.lora else 1)
    found |= {"noise_ratio": round(weights_noise(cell), 3), "minutes": round((time.monotonic() - began) / 60, 1)}
    told = {"cell": asdict(cell), "metrics": found, "machine": machine("cpu"), "commit": version()}
    write_text(folder / "cell.json", json.dumps(told))


def sample(cell: Cell, valid: Path, num: int, folder: Path) -> None:
    """Draw samples of a cell as ``run`` would, and write beside its folder how they compare with public requests.

    Raises:
        SystemExit: A step failed.
    """
    told = json.loads((folder / "cell.json").read_text(encoding="utf-8"))
    if OF_SAMPLES[0] in told["metrics"]:
        return
    samples, values, cli = folder / "samples.jsonl", folder / "evaluation.json", [sys.executable, str(ROOT / "cli.py")]
    predict = ["predict", "--config", str(folder / "model/config.yaml"), "--config", "configs/overlays/sample.yaml"]
    predict += ["--ckpt_path", str(folder / "model/checkpoints/last.ckpt"), "--run_dir", str(folder / "sample")]
    predict += ["--model.sampling.max_new_tokens", "48", "--model.sampling.redraws", "20"]
    predict += ["--data.init_args.num_samples", str(num)]
    predict += ["--trainer.callbacks.init_args.output_path", str(samples)]
    evaluate = ["evaluate", "--synthetic", str(samples), "--reference", str(valid), "--out", str(values)]
    for words in (predict, evaluate):
        with (folder / "log.txt").open("a", encoding="utf-8") as log:
            if subprocess.run([*cli, *words], cwd=ROOT, check=False, stdout=log, stderr=log).returncode:
                sys.exit(f"{cell.name}: {words[0]} failed; see {folder / 'log.txt'}")
    found = json.loads(values.read_text(encoding="utf-8"))
    told["metrics"] |= {name: round(found[name], 4) for name in OF_SAMPLES}
    write_text(folder / "cell.json", json.dumps(told))


def tabulate(runs: Path, out: Path) -> None:
    """The table of all cells that have finished."""
    rows: list[dict[str, Any]] = []
    for path in sorted(runs.glob("*/cell.json")):
        told = json.loads(path.read_text(encoding="utf-8"))
        cell = Cell(**told["cell"])
        common = {
            "epsilon": EPSILON,
            "system": "one_stage",
            "data": f"SMCalFlow, {cell.units:,} rows, B = {BATCH_SIZE}",
            "base_model": "SmolLM2-135M, LoRA 16" if cell.lora else "shipped base",
            "experiment": "optimizers",
            "setting": f"{cell.optimizer}, rate {cell.rate * 1e3:g}e-3, {cell.bands} band{'s' * (cell.bands > 1)}",
            "seed": cell.seed,
            "machine": told["machine"],
            "commit": told["commit"],
        }
        rows += [{**common, "metric": name, "value": value} for name, value in told["metrics"].items()]
    write_text(out, pd.DataFrame(rows).to_csv(index=False))


def main(argv: Sequence[str] | None = None) -> None:
    """Optimisers beside correlated noise: cross-entropy of public requests after private trainings."""
    parser = argparse.ArgumentParser(
        prog="python -m studies.tables optimizers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("data", type=Path, help="folder of SMCalFlow's files")
    parser.add_argument("--runs", type=Path, required=True, help="where the trainings go")
    parser.add_argument("--out", type=Path, required=True, help="the table, a CSV file")
    parser.add_argument("--cells", nargs="*", help="names of cells; default: all")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    options = parser.parse_args(argv)
    chosen = [cell for cell in cells() if not options.cells or cell.name in options.cells]
    if options.list:
        print("\n".join(cell.name for cell in chosen))
        return
    files = [options.data / f"{part}.dataflow_dialogues.jsonl.zip" for part in ("train", "valid")]
    turns, valid = (read_examples(str(file), "utterance", needs=()) for file in files)
    for number, cell in enumerate(chosen, 1):
        if not (options.runs / cell.name / "cell.json").exists():
            print(f"{number} of {len(chosen)}: {cell.name}, {cell.steps} steps", flush=True)
            train(cell, turns, valid, options.runs)
        if cell.is_sampled:
            sample(cell, files[1].resolve(), len(valid), options.runs / cell.name)
        tabulate(options.runs, options.out)
