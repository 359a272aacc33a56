"""What ``--check`` ends with: what each system would do, and about how long its trainings would take here."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.benchmark import Timer

from commands.data.reference import USUAL_LENGTH
from commands.lightning.hardware import mixing_size, training_half, training_precision
from commands.privacy.feature_extractors import embed
from commands.privacy.gradient_norms import build
from commands.quality.taught import taught_by
from commands.run.experiment.settings import Experiment, systems_of
from commands.run.preflight.sources import public_turns, texts_of_topics
from commands.run.preflight.training_plan import Readiness, trainings_of
from commands.run.steps.run_plan import RunPlan
from commands.run_folder.stage_config import StageConfig
from commands.run_folder.steps import Step
from commands.run_folder.systems import LESSONS, PUBLIC
from datamodules.batches.encoded import encode_examples
from datamodules.reading.columns import Columns, ReferenceColumns, unit_of
from datamodules.reading.examples import iter_examples
from datamodules.reading.files import expand_path
from datamodules.text_format import TextFormat
from doppel.console.plan import in_bands
from doppel.console.say import say
from doppel.errors import DataError
from doppel.evolution.budget import Outlook
from doppel.models.footprint import Footprint, Micro, footprint
from doppel.models.memory import described
from doppel.privacy.session import checkpoint_every
from doppel.text.topics import UNLIKE, make_codebook

if TYPE_CHECKING:
    from lightning_modules.causal_lm import CausalLM

#: Rows of the product, and the most and the least of its rate that steps reach, private or not: .45 to .6 on a CPU.
_DEVICES = {"cpu": (1024, 0.65, 0.25), "cuda": (8192, 0.3, 0.05)}
#: Public texts that topics are shown of.
_OF_TOPICS = 2_000
_TURNS, _EMBEDDED = 500, "embedded:train?num=200&seed=1"
#: Trained weights above which a training on a CPU takes days.
_MANY_WEIGHTS = 30e6


def tell_ready(plan: RunPlan, found: Mapping[str, Readiness | Outlook], is_here: bool) -> None:
    """Print what each system would do, as the preflight has found it, and about for how long.

    Args:
        plan: The run.
        found: What the preflight has found, by system.
        is_here: Whether the run is to be on this machine, and not in jobs.
    """
    experiment = plan.experiment
    for step in (step for step in plan.waiting if step.name in LESSONS.values() and found):  # where files were read
        num = len(taught_by(StageConfig(step.config).data))
        taught = "the base" if step.name == PUBLIC else step.name.removeprefix(f"{PUBLIC}_")
        least, most, _ = forecast(num, [step], experiment)
        say(
            f"first: {num:,} requests of the reference teach {taught}, "
            f"{_range(least, most)} of training on {_machine(is_here)}; samples are compared with the others"
        )
    for system in systems_of(experiment):
        ready, trainings = found.get(system.name), trainings_of(system, plan.waiting)
        if isinstance(ready, Outlook):
            noise = "NOT PRIVATE" if ready.noise_multiplier is None else f"σ {ready.noise_multiplier:.3f}"
            unit, texts = (
                unit_of(experiment.data.get("unit"), Columns.from_config(experiment.data)),
                experiment.evolving,
            )
            say(
                f"ready: {system.name}, {ready.num_units:,} {unit}s, {noise}, {ready.text}; "
                f"at most {texts.questions(experiment.num_samples):,} texts are written"
            )
        elif trainings and ready is not None:
            bands = 1 if ready.spec is None else ready.spec.bands
            least, most, held = forecast(ready.num_units, trainings, experiment, bands)
            more = "" if ready.unit == "utterance" else f", as much again for each further row a {ready.unit} has"
            say(f"{ready.text}, {_range(least, most)} of training on {_machine(is_here)} (by public rows{more})")
            if ready.spec is not None:
                most = max(checkpoint_every(steps, ready.spec.bands) for steps in ready.spec.stage_steps)
                often = "step" if most == 1 else f"{most} steps"
                say(
                    f"   a checkpoint is kept every {often} at least: a crash costs at most so many of the "
                    f"{ready.steps:,}, which stay paid"
                )
                if (told := in_bands(ready.spec)) is not None:
                    say(f"   {told}")
            if experiment.effort > 1:
                say(f"   effort={experiment.effort}: effort=1 takes 1/{experiment.effort} of the time, with more noise")
            if held is not None:
                say(f"   memory of a training here: {described(held, _here())}")
            if held is not None and held.num_trained > _MANY_WEIGHTS:
                say(
                    f"   warning  {system.name} trains {held.num_trained / 1e6:.0f} million weights, each with its "
                    "gradient, noise and means of the optimiser: take LoRA (--set model.lora.rank=8), which "
                    "take a hundredth of that"
                )
        else:
            why = " (how many units it has shows when it runs)" if trainings else ": nothing is left to train"
            say(f"ready: {system.name}{why}")
    if (texts := texts_of_topics(experiment)) is not None:
        _tell_topics(experiment, texts)


def _tell_topics(experiment: Experiment, path: str) -> None:
    """The topics that public texts have by themselves, before ε is spent."""
    texts = [turn.utterance for turn in public_turns(experiment, path)]
    texts = texts[:: max(1, math.ceil(len(texts) / _OF_TOPICS))]
    topics = experiment.topic_settings
    number = min(topics.num_topics, len(set(texts)))
    themes = make_codebook([], texts, embed(texts, topics.encoder), number, "").themes if number > 1 else ("none",)
    say(
        f"   themes of the topics of {path}: {'; '.join(dict.fromkeys(themes))}. What is far from all of them is "
        f"counted as {UNLIKE!r}, or by topics of such samples, which are not written yet"
    )


def forecast(
    num_units: int, trainings: Iterable[Step], experiment: Experiment, bands: int = 1
) -> tuple[float, float, Footprint | None]:
    """Estimate the least and most seconds of trainings, for one row a unit, and what the one that holds most holds.

    No weight is read. What a training holds is None where its model does not tell.
    """
    shortest, longest, largest, device = 0.0, 0.0, None, _here()
    for config in (step.config for step in trainings):
        model, trainer = build(config["model"], is_shell=True), config.get("trainer") or {}
        trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
        size = sum(weight.numel() for weight in model.parameters())
        flops = (4 * size + 2 * trained) * num_units * float(trainer.get("max_epochs", 1))
        rows, most, least = _DEVICES[device.type]
        left = torch.randn(rows, model.model.config.hidden_size, device=device)
        precision = str(trainer.get("precision") or "32-true")
        if precision == "auto" and device.type == "cpu" and mixing_size(config["model"], config.get("privacy")):
            precision = "32-true"
        seconds = flops * _tokens(model.text_format, experiment) / _rate(left, precision)
        shortest, longest = shortest + seconds / most, longest + seconds / least
        held = _held(model, config, training_half(precision), bands)
        largest = max(filter(None, (largest, held)), key=lambda found: found.peak, default=None)
    return shortest, longest, largest


def _machine(is_here: bool) -> str:
    """Whose time an estimate is: jobs of a cluster run on other machines than this one."""
    if is_here:
        return "this machine"
    what = torch.cuda.get_device_name() if _here().type == "cuda" else f"{os.cpu_count()} cores"
    return f"this machine, {platform.node()} with {what}, and not on the nodes of the jobs"


def _here() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _held(model: CausalLM, config: Mapping[str, Any], half: torch.dtype | None, bands: int) -> Footprint | None:
    """What a training of a configuration holds on this machine's device."""
    data = (config.get("data") or {}).get("init_args") or {}
    if model.base is not None:
        model.base.settle(_here(), "bf16-mixed" if half is torch.bfloat16 else "32-true")
    optimizer = ((config.get("model") or {}).get("init_args") or {}).get("optimizer") or {}
    is_private, named = config.get("privacy") is not None, optimizer.get("class_path", ".DPAdam")
    micro = Micro(
        data.get("max_tokens_per_micro_batch") or 4096,
        data.get("max_units_per_micro_batch"),
        half,
        _here().type,
        model.text_format.max_length,
        is_private,
        moments=1 if is_private and named.endswith(".DPAdam") else 2,
        bands=bands,
    )
    return footprint(model.model, micro, model.head_loss)


def _tokens(text_format: TextFormat, experiment: Experiment) -> float:
    """Tokens of a public row, of the reference or else of the embedded grammar: no private row says how long it is."""
    columns = ReferenceColumns.from_config(experiment.data)
    for path in filter(None, (experiment.reference, _EMBEDDED)):
        with suppress(DataError):  # a column that the model needs is not there
            found = iter_examples(expand_path(path), "utterance", needs=text_format.needs, columns=columns)
            turns = [t for t in islice(found, _TURNS) if not t.is_blank]
            turns = [turn for turn in turns if all(getattr(turn, name) for name in text_format.needs)]
            if turns:
                return float(encode_examples(turns, text_format, truncate=True).lengths.mean())
    return USUAL_LENGTH


def _rate(left: torch.Tensor, precision: str) -> float:
    """Operations a second of a product as wide as the model, in the precision of its training."""
    right = torch.randn(left.shape[1], 4 * left.shape[1], device=left.device, requires_grad=True)
    with training_precision(precision)():  # which casts a weight once
        timer = Timer("left @ right", globals={"left": left, "right": right}, num_threads=torch.get_num_threads())
        return 2 * left.numel() * right.shape[1] / timer.blocked_autorange(min_run_time=1.0).median


def _range(least: float, most: float) -> str:
    unit, name = (60, "minutes") if most < 7200 else (3600, "hours")
    low, high = max(1, round(least / unit)), max(2, math.ceil(most / unit))
    return f"{low} to {high} {name}" if most > 60 else "a minute at most"
