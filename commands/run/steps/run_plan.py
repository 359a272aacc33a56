"""What is to be done in one run folder: its experiment, its steps, and which of them are done or wait as jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from commands.run.experiment.settings import Experiment
from commands.run_folder.steps import Step

Mode = Literal["local", "submit", "dry-run", "check"]


@dataclass(frozen=True)
class RunPlan:
    """One experiment in one run folder.

    Attributes:
        experiment: What is run, with the parser's digest and the versions of the code.
        run: The folder, which may hold a part of the run already.
        steps: In an order in which they can be run.
        is_anew: Whether nothing binds the run to settings that were given before.
        repeated: Steps that are done, but under settings that have changed.
        jobs: Step → id of its job that was in the queue when this began.
        changed: Steps that are to be done, and under other settings than those that the run was started with.
    """

    experiment: Experiment
    run: Path
    steps: list[Step]
    is_anew: bool
    repeated: frozenset[str]
    jobs: Mapping[str, str]
    changed: frozenset[str] = frozenset()

    def step(self, name: str) -> Step | None:
        """Return a step; None where there is none of that name."""
        return next((step for step in self.steps if step.name == name), None)

    def is_done(self, name: str) -> bool:
        """Return whether a step has ended and its files still count."""
        return name not in self.repeated and (self.run / ".done" / name).is_file()

    def is_due(self, step: Step) -> bool:
        """Return whether a step is to be run: it is not done, or is done anew every time."""
        return not (step.is_once and self.is_done(step.name))

    @property
    def waiting(self) -> list[Step]:
        """Steps that are not done, but for those that are done anew every time."""
        return [step for step in self.steps if step.is_once and not self.is_done(step.name)]
