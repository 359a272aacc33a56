"""The steps of an experiment, in an order in which they can be run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from commands.pipeline.adaptation import AdaptationStages
from commands.pipeline.experiment import Experiment
from commands.pipeline.stages import Stages
from commands.pipeline.steps import Step


def steps_of(experiment: Experiment, run: Path, overlays: Iterable[str] = ()) -> list[Step]:
    """All steps of an experiment.

    Args:
        experiment: What is run.
        run: The run folder.
        overlays: Configuration files that the kind of node adds to every training of a language model.
    """
    return (AdaptationStages if experiment.adaptation else Stages)(experiment, run, overlays).all()
