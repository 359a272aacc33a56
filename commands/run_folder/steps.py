"""One process of a run, as data: what it runs, after which others, what it reads and what it leaves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from datamodules.reading.columns import Columns
from datamodules.reading.example import Field, Unit
from datamodules.reading.units import NameRule

Kind = Literal["fit", "predict", "metrics", "tool"]
#: Parts of a split that hold private turns.
PRIVATE_PARTS = ("private", "private_gold", "full")
#: Private utterances with the trees that a parser of public turns wrote, in the run folder.
ANNOTATED = "data/private_annotated.jsonl"
#: Private rows that a program gave the run, in the run folder.
GIVEN = "data/private_rows.jsonl"
#: Trees of the public reference, of whose names a model of trees writes, in the run folder.
PUBLIC_TREES = "public_trees.jsonl"
#: Shares of private requests that are released beside a training, in its folder.
SHARES = "marginals.json"
#: Vectors of private texts, in the folder of the step that embeds them, until it has released what it counts.
EMBEDDED = ".embedded"
Role = Literal[
    "checkpoint", "prompts", "pool", "candidates", "release", "more", "examples", "metrics", "private", "data", "report"
]
#: Roles of samples that a run hands out.
RELEASED: tuple[Role, ...] = ("release", "more", "examples")


@dataclass(frozen=True)
class File:
    """A file that a step leaves in the run folder.

    Attributes:
        path: Its place in the run folder.
        role: What it is. ``checkpoint``: weights of a training. ``prompts``: trees or labels that a sampling is asked
            with. ``pool``: an over-sample, of which a later step draws. ``candidates``: several texts for each prompt,
            of which a later step keeps one. ``release``: the samples of a system. ``more``: further samples of it, as
            likely as these. ``examples``: samples that somebody asked for by a label, a topic or trees, whose shares
            tell nothing. ``metrics``: numbers about samples or models. ``private``: what no ε covers and nobody may be
            given. ``data``: other lines, such as a split's public part. ``report``: what people read.
        system: The system that it belongs to; None for one of the whole run.
        budget: The ledger's scope that pays for it; None where nothing private is in it, or nothing pays.
    """

    path: str
    role: Role
    system: str | None = None
    budget: str | None = None


class InputFile(NamedTuple):
    """A file of the user that a step reads, or that its configuration names.

    Attributes:
        field: Of the experiment, which names the file.
        path: As it stands there; None: it names none.
        kind: ``train``: private texts that systems learn from; ``private``: others; ``public``: texts that anybody may
            see, which must not be those of a private file; ``other``: words, labels and models.
        columns: What its columns are called.
        unit: What is protected.
        needs: Columns that each row has to have.
        truncate: Whether utterances that are too long are cut.
        is_read: Whether it is read before anything starts, and what is odd in it is told.
        unit_names: By which rule names of units are read.
    """

    field: str
    path: str | None
    kind: Literal["train", "private", "public", "other"] = "other"
    columns: Columns | None = None
    unit: Unit | None = "utterance"
    needs: tuple[Field, ...] = ()
    truncate: bool = False
    is_read: bool = True
    unit_names: NameRule | None = None

    @property
    def is_protected(self) -> bool:
        """Whether it holds private text."""
        return self.kind in ("train", "private")


#: Commands of steps, beside the trainings and samplings, that run a model.
_OF_MODELS = ("evaluate", "keep-best", "evolve")


@dataclass(frozen=True)
class Step:
    """One process of a run.

    Attributes:
        name: Its name, unique in the run; of its mark, its job and its configuration.
        command: What runs it.
        config: What ``RUN/configs/NAME.yaml`` holds: the options of the command, of whatever kind it is.
        folder: Of a training or a sampling, its place in the run folder.
        is_once: Whether it is left out where it is done.
        writes: Every file that it may leave, but for logs, marks, the ledger and checkpoints beside the last one.
        reads: Files that what it writes depends on: in the run folder by their place there, others as they are named.
        protected: Those of ``reads`` that hold private text. Their plain hash would tell who has the same file, so
            nothing but a keyed digest of them is written down.
        mechanisms: What pays for what it learns or counts of these, BUDGET/STAGE as the ledger calls them.
        inputs: Files of the user among them, and others that its configuration names: how each is read.
        needs: Steps that must have ended before it, as :func:`linked` finds them; without those that these wait for.
    """

    name: str
    command: str
    config: Mapping[str, Any] = field(default_factory=dict)
    folder: str | None = None
    is_once: bool = True
    writes: tuple[File, ...] = ()
    reads: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    mechanisms: tuple[str, ...] = ()
    inputs: tuple[InputFile, ...] = ()
    needs: tuple[str, ...] = ()

    @property
    def train_file(self) -> InputFile:
        """What a training learns from; no path where nothing names it, which a run refuses before it starts."""
        return next((file for file in self.inputs if file.kind == "train"), InputFile("data.train_path", None, "train"))

    @property
    def kind(self) -> Kind:
        """What it needs: ``fit`` all devices of the nodes, ``predict`` those of one node, ``metrics`` one device,
        ``tool`` none.
        """
        if self.command in ("fit", "predict"):
            return "fit" if self.command == "fit" else "predict"
        has_model = self.command == "resample" and not self.config.keys().isdisjoint(("parser", "encoder"))
        return "metrics" if has_model or self.command in _OF_MODELS else "tool"

    @property
    def embeds(self) -> bool:
        """Whether a model reads private text in it, beside trainings and samplings."""
        return self.kind == "metrics" and bool(self.protected)

    def words(self, run: Path) -> tuple[str, ...]:
        """Return what follows ``cli.py``: ``COMMAND --config RUN/configs/NAME.yaml``."""
        words = (self.command, "--config", str(run / "configs" / f"{self.name}.yaml"))
        if self.folder is not None:
            return (*words, "--run_dir", str(run / self.folder))
        return ("step", *words)


def linked(steps: Iterable[Step]) -> list[Step]:
    """Link steps, given in an order in which they can be run: each needs those that write what it reads."""
    writers: dict[str, str] = {}
    before: dict[str, set[str]] = {}  # each step → all that have ended when it starts
    listed = []
    for step in steps:
        read = dict.fromkeys(writers[path] for path in step.reads if path in writers)
        implied = {name for other in read for name in before[other]}
        before[step.name] = implied | set(read)
        writers |= {file.path: step.name for file in step.writes}
        listed.append(replace(step, needs=tuple(name for name in read if name not in implied)))
    return listed
