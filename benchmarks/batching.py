"""What a logical batch costs as training cuts it, beside other cuts, and how much of it is padding.

    DOPPEL_DATA=… python -m benchmarks.batching

One Poisson-sized batch of units of the training set is cut as training does (few public shapes by each row's own
length, filled up with constant rows), sorted by length and cut where rows times length pass a token budget, and as is
usual (shuffled, a fixed number of rows, padded to the longest of each micro-batch). The clipped sum is the same. All
make a full private step (all micro-batches, one AdamW step) on the same model, in turns.
"""

from __future__ import annotations

import argparse
import os
import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks._harness import Report, compare, keep_allocated_memory, result_file, table
from benchmarks._subject import MAX_GRAD_NORM
from datamodules.batches.batch import MicroBatch
from datamodules.batches.cut import LogicalBatches, cut, micro_batch
from datamodules.batches.encoded import EncodedExamples, encode_examples
from datamodules.reading.example import Example
from datamodules.reading.examples import read_examples
from doppel.privacy.clipping import PerSampleClipper
from lightning_modules.causal_lm import CausalLM, Parse2Utterance, ParseTreeLM, UtteranceLM

MODELS: dict[str, type[CausalLM]] = {"p(x)": UtteranceLM, "p(y)": ParseTreeLM, "p(x|y)": Parse2Utterance}
COLUMNS = (
    "data, model",
    "rows",
    "mean tokens",
    "cut",
    "micro-batches",
    "processed / real tokens",
    "padding",
    "s a step",
    "time by fixed shapes'",
)


def training_sets(folder: str | None) -> dict[str, str]:
    """The published training files under ``folder``, or the embedded grammar if there is none."""
    found = {}
    for label, name in (("SMCalFlow", "smcalflow"), ("SGD", "sgd")):
        files = sorted(Path(folder, name).glob("train*.jsonl*")) if folder else []
        if files:
            found[label] = str(files[0])
    return found or {"embedded grammar": "embedded:train?num=4000&seed=1"}


def sampled(turns: Sequence[Example], num_units: int, seed: int = 0) -> list[Example]:
    """A batch of turns as a Poisson sampler draws it: about ``num_units``, each turn independently."""
    generator = random.Random(seed)
    rate = min(1.0, num_units / len(turns))
    return [turn for turn in turns if generator.random() < rate]


def shuffled(turns: EncodedExamples, rows: int, max_tokens: int | None = None, seed: int = 0) -> list[list[list[int]]]:
    """Micro-batches of ``rows`` rows in random order; or as many rows as the longest of all allows for the budget."""
    order = list(range(len(turns)))
    random.Random(seed).shuffle(order)
    if max_tokens is not None:
        rows = max(1, max_tokens // int(turns.lengths.max()))
    return [[[row] for row in order[start : start + rows]] for start in range(0, len(order), rows)]


def step_of(model: CausalLM, batches: list[MicroBatch]) -> Callable[[], None]:
    """A full private step on these micro-batches."""
    clipper = PerSampleClipper(model, MAX_GRAD_NORM)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5, weight_decay=0.0)

    def step() -> None:
        optimizer.zero_grad()
        for batch in batches:
            with clipper.capture(batch.num_units, rows_per_unit=batch.rows_per_unit):
                model.losses(batch).sum().backward()
            clipper.accumulate()
        optimizer.step()

    return step


def run(label: str, turns: Sequence[Example], model: CausalLM, options: argparse.Namespace) -> list[list[str]]:
    """Rows of the table for one data set and model."""
    encoded = encode_examples(turns, model.text_format)
    fixed = LogicalBatches(encoded, options.max_tokens, 1).make(0, range(encoded.num_units), options.units)
    made = {f"fixed shapes, at most {options.max_tokens} tokens": fixed.micro_batches}
    cuts = {f"sorted, at most {options.max_tokens} tokens": list(cut(encoded, _units(encoded), options.max_tokens))}
    for rows in options.micro_batch:
        cuts[f"shuffled, {rows} rows"] = shuffled(encoded, rows)
    cuts[f"shuffled, rows for at most {options.max_tokens} tokens"] = shuffled(encoded, 0, options.max_tokens)
    real = int(encoded.lengths.sum())
    made |= {name: [micro_batch(encoded, part) for part in parts] for name, parts in cuts.items()}
    steps = {name: step_of(model.to(options.device), _to(batches, options.device)) for name, batches in made.items()}
    first = next(iter(made))
    lines = []
    for name, batches in made.items():
        processed = sum(batch.input_ids.numel() for batch in batches)
        shares = [str(len(batches)), f"{processed / real:.2f}", f"{1 - real / processed:.0%}"]
        start = [label, str(len(encoded)), f"{real / len(encoded):.1f}", name, *shares]
        if name == first:
            lines.append([*start, "", "1"])
            continue
        timed = compare(
            steps[name],
            steps[first],
            device=options.device,
            repeats=options.repeats,
            seconds=options.seconds,
            warmup=1,
        )
        low, high = timed.spread
        lines[0][7] = f"{timed.baseline_median:.2f}"
        lines.append([*start, f"{timed.median:.2f}", f"**{timed.ratio:.2f}** [{low:.2f}, {high:.2f}]"])
    return lines


def _units(encoded: EncodedExamples) -> list[list[int]]:
    return [[row] for row in range(len(encoded))]


def _to(batches: list[MicroBatch], device: str) -> list[MicroBatch]:
    return [replace(b, input_ids=b.input_ids.to(device), labels=b.labels.to(device)) for b in batches]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every data set and model, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("DOPPEL_DATA"), help="folder of the data sets (DOPPEL_DATA)")
    parser.add_argument("--model", default="models/base", help="base model")
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=list(MODELS))
    parser.add_argument("--units", type=int, default=512, help="expected rows of the logical batch")
    parser.add_argument("--max-tokens", type=int, default=4096, help="token budget of a micro-batch")
    parser.add_argument("--micro-batch", nargs="+", type=int, default=[16, 32], help="rows of the fixed micro-batches")
    parser.add_argument("--repeats", type=int, default=3, help="turns of each row")
    parser.add_argument("--seconds", type=float, default=40.0, help="end a row after so long, but not before 3 turns")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="of torch, on CPU")
    parser.add_argument("--out", type=Path, help="file to write; default: benchmarks/results/batching-MACHINE.md")
    parser.add_argument("--append", action="store_true", help="keep what the file holds")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    notes = (
        "a private step (clipping, AdamW, no noise) on one Poisson-sized batch; each cut in turns with the first",
        "processed / real tokens: 1 is no padding; constant rows count as padding",
    )
    path = options.out or result_file("batching", options.device)
    report = Report("Cutting a logical batch", options.device, path, options.append, notes)
    lines: list[list[str]] = []
    for name, path_of_data in training_sets(options.data).items():
        turns = sampled(read_examples(path_of_data, "utterance"), options.units)
        for kind in options.models:
            model = MODELS[kind](base_model=options.model)
            usable = [turn for turn in turns if kind == "p(x)" or turn.parse is not None]
            lines += run(f"{name}, {kind}".replace("|", "\\|"), usable, model, options)
    report.add(table(COLUMNS, lines))


if __name__ == "__main__":
    keep_allocated_memory()
    main()
