"""About how long the steps of a system take on this machine: measured for some seconds, and multiplied."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

from commands.pipeline.readiness import Readiness
from commands.pipeline.settings import Experiment
from commands.runs.steps import Step
from commands.runs.system import BASE_MODEL
from commands.runs.yaml_files import ROOT
from datamodules.turn import Turn
from doppel.errors import DataError

#: Units whose rows are measured, turns that are read for them, and seconds that a measurement takes.
_UNITS, _TURNS, _SECONDS = 128, 2000, 3.0
#: Products of numbers that a pass is measured with, and weights that a step is: larger models by fewer, and multiplied.
_PRODUCTS, _WEIGHTS = 1e11, 5e6
#: Trained weights above which a training on a CPU takes days, and tokens of a sample that is drawn to measure.
MANY_WEIGHTS, _TOKENS = 30e6, 16
#: Samples that are drawn, and texts that are read, to measure; those that are read one by one; public turns that are
#: compared, at most.
_SAMPLES, _ALONE, _COMPARED = 32, 8, 20_000
#: Seconds that some rounds of AIM take, whatever the table.
_AIM = 30.0
_EMBEDDED = "embedded:train?num=200&seed=1"


@dataclass(frozen=True)
class Pace:
    """What a model takes, in seconds.

    Attributes:
        per_unit: Forward and backward pass of a unit.
        per_step: Noise and optimiser of a step, whatever was drawn.
        per_token: A token of a sample.
        target_tokens: Tokens of a sample.
        num_trained: Weights that are trained.
    """

    per_unit: float
    per_step: float
    per_token: float
    target_tokens: float
    num_trained: int


@dataclass(frozen=True)
class Forecast:
    """How long a system takes.

    Attributes:
        seconds: From its first training to its metrics, for one row a unit.
        per_row: Seconds more for each further row that a unit has, on average.
        num_trained: Weights that its largest model trains.
    """

    seconds: float
    per_row: float
    num_trained: int


@dataclass(frozen=True)
class Reading:
    """What models of public text take to read one, in seconds.

    Attributes:
        judged: By all judges at hand.
        encoded: By the sentence encoder.
        encoded_alone: By the sentence encoder, as private texts are: each by itself.
    """

    judged: float
    encoded: float
    encoded_alone: float


def forecast(ready: Readiness, trainings: Iterable[Step], steps: Iterable[Step], experiment: Experiment) -> Forecast:
    """How long a system takes on this machine.

    Formal guarantees:
        The measured rows are public, those of the reference or else of the embedded grammar, and N counts as public: so
        the figures say nothing of how long the private rows are, nor of how many of them a unit has.

    Args:
        ready: Its N, B and number of steps.
        trainings: Its trainings.
        steps: All steps of the run; those after the trainings are told by the files that they write.
        experiment: What is run.
    """
    start, total, per_row, paces = _start(), 0.0, 0.0, {}
    for step in trainings:
        config = step.config or {}
        pace = paces[step.name] = measure(config, experiment.reference)
        epochs = float(config.get("trainer", {}).get("max_epochs", 1))
        per_row += epochs * ready.num_units * pace.per_unit
        total += start + epochs * ready.num_units / ready.batch_size * pace.per_step
    pool, own_steps = 0, [step for step in steps if any(file.system == ready.system for file in step.writes)]
    texts = _texts(experiment)
    reading = _reading(texts[:_SAMPLES], str(experiment.section("model").get("base_model") or BASE_MODEL))
    for step in own_steps:
        if step.kind == "fit":
            continue
        total += start
        if step.kind == "predict":
            checkpoint = str((step.config or {}).get("ckpt_path"))
            own = next((pace for name, pace in paces.items() if f"/{name}/checkpoints/" in checkpoint), None)
            pool = (step.config or {})["data"]["init_args"].get("num_samples") or 0
            total += 0.0 if own is None else pool * own.target_tokens * own.per_token
        elif step.name.startswith("evaluate_"):
            total += ((experiment.num_samples or pool) + len(texts)) * reading.judged
        elif step.name == "marginals":
            total += _AIM
        elif "--encoder" in step.argv and step.argv[0] == "calibrate":
            total += (pool + len(texts)) * reading.encoded
            per_row += ready.num_units * reading.encoded_alone
    return Forecast(total + per_row, per_row, max(pace.num_trained for pace in paces.values()))


def _texts(experiment: Experiment) -> list[str]:
    """Public utterances: those that the samples are compared with; a few of the grammar where there are none."""
    from datamodules.columns import Columns, reference_columns
    from datamodules.sources import expand_path
    from datamodules.tables import place_turns

    columns = reference_columns(Columns.from_config(experiment.section("data")))
    for path, most in ((experiment.reference, _COMPARED), (_EMBEDDED, _SAMPLES)):
        places = [] if path is None else place_turns(expand_path(path), "utterance", columns=columns)
        found = [placed.turn.utterance for placed in islice(places, most) if placed.turn is not None]
        if found:
            return found
    raise AssertionError


def _reading(texts: Sequence[str], base: str) -> Reading:
    """How long texts are read, by the models that are at hand; what is not takes no time."""
    from commands.quality.judges import judges_of

    judges = judges_of(Path(), base_model=base)
    first, *rest = texts
    judged = encoded = alone = 0.0
    for name, read in [*judges.featurizers.items(), *([("fluency", judges.nats)] if judges.nats else [])]:
        read([first])  # loads the model
        seconds = _timed(partial(read, rest)) / max(len(rest), 1)
        judged += seconds
        if name == "minilm":
            encoded = seconds
            singles = [f"{text} ." for text in rest[:_ALONE]]  # none of which was read before
            alone = sum(_timed(partial(read, [text])) for text in singles) / max(len(singles), 1)
    return Reading(judged, encoded, alone)


def seconds_of_plan(base: Path, lora: int | None, num_units: int, batch_size: int, epochs: float) -> float:
    """Seconds that trainings of ``plan`` take on this machine: texts like those of the embedded grammar.

    Args:
        base: Folder of the base model.
        lora: Rank of adapters, which are then all that is trained.
        num_units: N.
        batch_size: B.
        epochs: Of all trainings together.
    """
    model = {"base_model": str(base), "max_length": 128, "test_metrics": False}
    if lora is not None:
        model["lora"] = {"rank": lora, "alpha": 2.0 * lora}
    pace = measure(
        {
            "model": {"class_path": "lightning_modules.causal_lm.UtteranceLM", "init_args": model},
            "data": {"init_args": {"train_path": _EMBEDDED}},
            "trainer": {"precision": "auto"},
            "privacy": {},
        },
        None,
        samples=False,
    )
    return epochs * (num_units * pace.per_unit + num_units / batch_size * pace.per_step)


def measure(config: Mapping[str, Any], reference: str | None, samples: bool = True) -> Pace:
    """The pace of a training and of samples from its model, on public rows that have what it needs.

    Steps are taken and texts written as a run does it: in the training's precision, with copies of weights.

    Args:
        config: Of the training.
        reference: Public turns; None: those of the embedded grammar.
        samples: Whether to measure samples too.
    """
    import torch
    from torch import Tensor

    from commands.lightning.hardware import training_precision
    from commands.pipeline.norms import build
    from datamodules.columns import Columns, reference_columns
    from datamodules.dialogue_data_module import DialogueDataModule
    from datamodules.encoded_turns import encode_turns
    from datamodules.logical_batches import EncodedUnits, LogicalBatches
    from datamodules.sources import expand_path
    from datamodules.tables import place_turns
    from doppel.half_weights import HalfWeights
    from doppel.privacy.clipping import PerSampleClipper
    from doppel.privacy.noise import GaussianNoise
    from doppel.privacy.private_step import noisy_mean
    from lightning_modules.sampling import sample_texts

    data, model = config["data"]["init_args"], build(config["model"])
    module = DialogueDataModule(**{**data, "val_path": None})
    turns: list[Turn] = []
    for path in ([] if reference is None else [reference]) + [_EMBEDDED]:
        columns = reference_columns(Columns.from_config(data))
        with suppress(DataError):  # a column that the model needs is not there
            places = place_turns(expand_path(path), "utterance", needs=model.codec.needs, columns=columns)
            turns = [placed.turn for placed in islice(places, _TURNS) if placed.turn is not None]
        turns = [turn for turn in turns if all(getattr(turn, field) for field in model.codec.needs)]
        if turns:
            break
    encoded = encode_turns(turns, model.codec, module.truncate)
    units = EncodedUnits(encoded, _UNITS)
    size = sum(parameter.numel() for parameter in model.parameters())
    most = min(module.max_tokens_per_micro_batch, int(_PRODUCTS / (6 * size)))
    batches = LogicalBatches(units, model.codec, max(most, 1), module.max_turns_per_unit)
    parts = batches.make(0, range(len(units)), len(units)).micro_batches
    privacy = config.get("privacy")
    clipper = PerSampleClipper(model, max_grad_norm=1.0) if privacy is not None else None

    precision = training_precision(str((config.get("trainer") or {}).get("precision") or "32-true"))

    def run(part: Any) -> None:
        part.input_ids, part.labels = part.input_ids.to(model.device), part.labels.to(model.device)
        with nullcontext() if clipper is None else clipper.capture(part.num_units, part.rows_per_unit):
            with precision():
                loss = (model.losses(part) / part.rows_per_unit).sum()
            loss.backward()
        if clipper is not None:
            clipper.accumulate()

    times: list[float] = []
    sizes: list[int] = []
    with HalfWeights(model).in_use():
        run(parts[-1])  # the first pass is slower
        while sum(times) < _SECONDS and len(times) < len(parts):
            part = parts[len(times)]
            times.append(_timed(partial(run, part)))
            sizes.append(part.input_ids.numel())
    per_unit = sum(times) / sum(sizes) * sum(part.input_ids.numel() for part in parts) / len(units)
    optimizer = model.configure_optimizers()["optimizer"]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    num_trained = sum(parameter.numel() for parameter in trained)
    some = sorted(trained, key=Tensor.numel)
    while sum(map(Tensor.numel, some)) > max(_WEIGHTS, some[0].numel()):
        some.pop().grad = None  # the optimiser leaves it alone
    noise = GaussianNoise(1.0, 1.0)

    def step() -> None:
        if clipper is not None:
            noisy_mean(some, noise, len(units), 0)
        optimizer.step()

    step()
    per_step = _timed(step) * num_trained / sum(map(Tensor.numel, some))
    if clipper is not None:
        clipper.close()
    model.zero_grad()
    targets = (encoded.lengths - encoded.num_prompt)[encoded.lengths > encoded.num_prompt]
    length = float(targets.mean()) if len(targets) else 1.0
    prompts = [encoded.row(row)[: encoded.num_prompt[row]].tolist() for row in range(min(_SAMPLES, len(encoded)))]
    written: list[int] = []

    def sample() -> None:
        few = prompts if size <= MANY_WEIGHTS else prompts[:1]
        sampling = model.sampling if size <= MANY_WEIGHTS else replace(model.sampling, max_new_tokens=_TOKENS)
        texts = sample_texts(model.model, model.codec, few, sampling, stream=[0])
        written.append(sum(map(len, model.codec.tokenize([text for text, _ in texts]))) + len(texts))

    if not samples:
        return Pace(per_unit, per_step, 0.0, length, num_trained)
    with torch.no_grad(), precision(), HalfWeights(model).in_use():
        seconds = _timed(sample)
    return Pace(per_unit, per_step, seconds / max(written[0], 1), length, num_trained)


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@cache
def _start() -> float:
    """Seconds until a process of a step has loaded its libraries."""
    words = [sys.executable, "-c", "import commands.lightning.train, lightning_modules.causal_lm, callbacks"]
    return _timed(lambda: subprocess.run(words, cwd=ROOT, check=False, capture_output=True))
