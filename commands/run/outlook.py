"""What an evolution by votes is about to do, told before anything is spent: rounds, candidates, votes beside noise."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from commands.run.readiness import count_units
from commands.run.settings import Experiment
from commands.runs.stage_config import StageConfig
from commands.runs.steps import Step
from commands.runs.system import System
from doppel.console.ledger import FILE_NAME
from doppel.evolution.budget import STAGE, Outlook, plan_beside
from doppel.privacy.accounting import Mechanism
from doppel.privacy.ledger import Ledger
from doppel.privacy.spec import PrivacyArguments


def advice(
    experiment: Experiment, system: System, steps: Sequence[Step], num_units: Mapping[str, int], run: Path
) -> list[str]:
    """What makes the votes of a system a waste of its ε; arguments as of :func:`outlook`."""
    found = outlook(experiment, system, steps, num_units, run)
    return [] if found is None or found.advice is None else [f"{system.name}: {found.advice}"]


def ready(
    experiment: Experiment, system: System, steps: Sequence[Step], num_units: Mapping[str, int], run: Path
) -> str | None:
    """What a system is about to do, in words; None where :func:`outlook` is, whose arguments these are."""
    found = outlook(experiment, system, steps, num_units, run)
    if found is None:
        return None
    noise = "NOT PRIVATE" if found.noise_multiplier is None else f"σ {found.noise_multiplier:.3f}"
    unit, texts = experiment.data.get("unit") or "utterance", experiment.evolving
    return (
        f"ready: {system.name}, {found.num_units:,} {unit}s, {noise}, {found.text}; "
        f"at most {texts.questions(experiment.num_samples):,} texts are written"
    )


def outlook(
    experiment: Experiment, system: System, steps: Sequence[Step], num_units: Mapping[str, int], run: Path
) -> Outlook | None:
    """What the votes of a system are worth.

    Formal guarantees:
        A function of N, which counts as public, of the budget and of the experiment.

    Args:
        experiment: What is run.
        system: One of its systems.
        steps: Of the run that are not done.
        num_units: Path of a private file → its units.
        run: The run folder, whose ledger may have paid for rows of attributes.

    Returns:
        None of a system without votes, or whose units nobody has counted.

    Raises:
        CalibrationError: No noise keeps the ε.
    """
    step = next((step for step in steps if step.command == "evolve" and step.writes[0].system == system.name), None)
    if step is None:
        return None
    data, settings = step.config["data"], experiment.evolving
    count = count_units(data["train_path"], StageConfig({"data": {"init_args": data}}), num_units)
    if count is None:
        return None
    pool = experiment.num_samples * (1 + settings.variations)
    found = Outlook(count, pool, settings.clusters or pool, settings.votes_each, settings.rounds, None)
    if "privacy" not in step.config:
        return found
    privacy, ledger = PrivacyArguments(**step.config["privacy"]), Ledger(run / FILE_NAME)
    spent = ledger.spent(privacy.scope)
    known = next((record.key[1] for record in spent if record.stage == STAGE), None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said when the files are read
        unit = str(data.get("unit") or "utterance")
        planned = _planned(experiment, privacy, count, ledger)
        sigma = known or plan_beside(privacy, count, settings.rounds, unit, ledger, planned).noise_multiplier
    return replace(found, noise_multiplier=sigma)


def _planned(experiment: Experiment, privacy: PrivacyArguments, num_units: int, ledger: Ledger) -> list[Mechanism]:
    """Rows of attributes that the run is still to measure before the votes."""
    if not experiment.evolving.measures_rows or experiment.attributes is None:
        return []
    from doppel.tables.releases import NoisyMarginals  # needs torch, which no --help waits for

    if any(record.kind == NoisyMarginals.kind for record in ledger.spent(privacy.scope)):
        return []
    share = replace(privacy, histogram_noise_multiplier=None, histogram_share=experiment.attributes.share)
    return [Mechanism(1.0, noise, 1)] if (noise := share.histogram_noise(num_units)) is not None else []
