"""The steps that draw more samples of a system whose run has ended."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from commands.run.recipes import recipe_of
from commands.run.settings import Calibration, Experiment, Topics
from commands.run.step_maker import StepMaker
from commands.runs.steps import Role, Step, linked
from commands.runs.system import System
from commands.runs.yaml_files import Settings


@dataclass(frozen=True)
class Wanted:
    """What is asked for.

    Attributes:
        num: How many samples.
        seed: Of the draw; None: one that follows from the run's seed and the number of the draw.
        label: Samples for this label alone.
        topic: Samples of this topic alone.
        trees: File of trees, of which each gets one utterance.
        is_public: Whether anybody may see these trees.
        oversample: Samples that are written for each that is of the topic.
    """

    num: int
    seed: int | None = None
    label: str | None = None
    topic: str | None = None
    trees: Path | None = None
    is_public: bool = False
    oversample: int = 1

    @property
    def role(self) -> Role:
        """Of the samples: those that were asked for by a label, a topic or trees tell nothing of shares."""
        is_plain = self.label is None and self.topic is None and self.trees is None
        return "more" if is_plain else "examples"


class _MoreMaker(StepMaker):
    """Makes the steps of a later draw."""

    def __init__(self, experiment: Experiment, run: Path, wanted: Wanted) -> None:
        super().__init__(experiment, run)
        self.given, self.is_public = wanted.trees, wanted.is_public
        self.only = wanted.topic if wanted.label is None else wanted.label

    def calibration(self, system: System) -> Calibration | None:
        """Given trees are not drawn from: each gets its utterance."""
        return None if self.given is not None else super().calibration(system)

    def trees(
        self, system: System, stage: str, shares: Calibration | Topics | None = None, changes: Settings | None = None
    ) -> list[Step]:
        """Given trees need no model."""
        return [] if self.given is not None else super().trees(system, stage, shares, changes)

    def prompts(self, path: str) -> Settings:
        """The given trees in place of the model's."""
        if self.given is None:
            return super().prompts(path)
        return {"prompts_path": str(self.given), **({"is_public": True} if self.is_public else {})}


def more_steps(experiment: Experiment, run: Path, system: System, draw: int, wanted: Wanted) -> list[Step]:
    """The steps of the system's own recipe without its trainings, under the names of a later draw.

    Formal guarantees:
        No step trains, none reads a private file, and none releases shares: they read checkpoints and shares that the
        ledger has paid for. All they leave is post-processing of these.

    Args:
        experiment: Of the run.
        run: The run folder.
        system: Whose samples.
        draw: Number of the draw, 2 for the first one after the run's own.
        wanted: What is asked for.
    """
    seed = seed_of(experiment, system, draw) if wanted.seed is None else wanted.seed
    changed = replace(experiment, num_samples=wanted.num, seed=seed)
    if wanted.topic is not None:
        changed = replace(changed, topics=replace(experiment.topics or Topics(), oversample=wanted.oversample))
    assert draw > 1
    steps = recipe_of(system)(_MoreMaker(changed, run, wanted), replace(system, draw=draw, role=wanted.role))
    kept = [step for step in steps if step.kind != "fit"]
    assert not any(step.protected for step in kept), "a later draw reads nothing private"
    return linked(kept)


def seed_of(experiment: Experiment, system: System, draw: int) -> int:
    """A seed for each draw of each system, from the run's public one: draws do not repeat each other's texts."""
    name = f"{experiment.seed} {system.name} {draw}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) >> 1
