"""From private turns to samples, their metrics and the report: the steps of an experiment."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from commands.run.adaptation import adaptation
from commands.run.recipes import steps_of_system
from commands.run.settings import Experiment, systems_of
from commands.run.step_maker import StepMaker
from commands.runs.steps import PUBLIC_TREES, Step, linked


def steps_of(experiment: Experiment, run: Path, overlays: Iterable[str] = ()) -> list[Step]:
    """All steps of an experiment, in an order in which they can be run; arguments as of :class:`StepMaker`."""
    make = StepMaker(experiment, run, overlays)
    if experiment.adaptation is not None:
        steps = adaptation(make, experiment.adaptation)
    else:
        data = experiment.data
        parser = str(experiment.public_parser)
        steps = [make.annotate_private(parser, data["train_path"], data.get("unit"))] if experiment.write_parses else []
        for system in systems_of(experiment):
            steps += steps_of_system(make, system)
    if any(PUBLIC_TREES in step.reads for step in steps):
        steps.insert(0, make.public_trees())
    return linked([*steps, *make.report(steps)])
