"""A system: how it is made, what it needs, where its files lie, and how tables call it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from commands.runs.steps import Role
from commands.runs.yaml_files import PLACE
from datamodules.reading.example import Field

#: Model that a language model starts from where an experiment names none.
BASE_MODEL = str(PLACE / "models/base")
#: Stage of a training (a key of ``Experiment.epochs`` and ``Experiment.stages``) → the file of its model.
MODEL_FILES = {
    "one_stage": "configs/utterance_lm.yaml",
    "labels": "configs/parse2utterance.yaml",
    "attributes": "configs/parse2utterance.yaml",
    "parse_tree": "configs/parse_tree_lm.yaml",
    "parse2utterance": "configs/parse2utterance.yaml",
    "parser": "configs/semantic_parser.yaml",
    "parser_low": "configs/semantic_parser.yaml",
}


@dataclass(frozen=True)
class System:
    """A way from private turns to synthetic ones, or a training that stands alone.

    Attributes:
        name: As in ``Experiment.systems``, reports and the ledger's scopes.
        label: As tables and plots call it.
        stages: Its models, keys of :data:`MODEL_FILES`, in the order of the budget that they share.
        learns: What its models learn of the private turns; None: it has no samples.
        models_of: System whose models it samples from, so that it spends nothing itself: sampling is post-processing.
        needs: What an experiment must describe for it: ``""`` nothing, ``stages`` or ``variants`` an entry of its name,
            ``labels`` the list of labels, ``attributes`` which there are, ``adaptation`` that it is one.
        is_main: Whether its figures stand for a run's where one system's are shown; its files have the plain names.
        draw: Which samples of it these are: 1 for those of the run, more for what is sampled later
            (:mod:`commands.run.sample`), whose files and steps have names of their own.
        role: Of these samples in the manifest.
        about: What it does, in words for readers of a page; empty where it has no samples.
    """

    name: str
    label: str
    stages: tuple[str, ...] = ()
    learns: Field | None = None
    models_of: System | None = None
    needs: Literal["", "stages", "variants", "labels", "attributes", "adaptation"] = ""
    is_main: bool = False
    draw: int = 1
    role: Role = "release"
    about: str = ""

    @property
    def has_trees(self) -> bool:
        """Whether the samples come with the trees that they were written from."""
        return self.learns == "parse"

    @property
    def has_attributes(self) -> bool:
        """Whether the samples come with the attributes that they were written for, and are counted by these."""
        return self.needs == "attributes"

    @property
    def scope(self) -> str:
        """Scope of the ledger that pays for the samples."""
        return self.models_of.name if self.models_of else self.name

    def named(self, name: str) -> str:
        """A file or a folder by what the system calls it: the main one's have this very name."""
        return name if self.is_main else f"{self.name}_{name}"

    def source(self, stage: str) -> str:
        """What its samples of a model call their origin."""
        return self.named(stage) if self.has_trees else self.name

    def model(self, stage: str) -> str:
        """Folder of a model that it samples from, its own or another system's."""
        return (self.models_of or self).source(stage)

    def part(self, stage: str) -> str:
        """What it samples from a model, as steps are called: ``trees``, ``utterances``, or the system's name."""
        written = {"parse_tree": "trees", "parse2utterance": "utterances"}
        if self.draw > 1:
            return f"{self.name}-{self.draw}" + (f"_{written[stage]}" if stage in written else "")
        return self.named(written[stage]) if stage in written else self.name

    def folder(self, stage: str) -> str:
        """Folder of the sampling of a model."""
        return f"sample_{self.part(stage) if self.draw > 1 else self.source(stage)}"

    @property
    def synthetic(self) -> str:
        """File of the samples, in the run folder."""
        if self.draw > 1:
            return f"samples/{self.name}-{self.draw}.jsonl"
        return "synthetic.jsonl" if self.is_main else f"synthetic_{self.name}.jsonl"

    @property
    def prompts(self) -> str | None:
        """File of the trees or labels that the samples are written from; None where there are none."""
        written = {"parse": "trees", "label": "labels"}.get(self.learns or "")
        if written is None:
            return None
        if self.draw > 1:
            return self.synthetic.replace(".jsonl", f"_{written}.jsonl")
        return f"{self.name}.jsonl" if written == "labels" else self.named("trees.jsonl")


def pool_of(file: str) -> str:
    """The over-sample that a file of trees or samples is drawn from."""
    return _beside(file, "pool")


def candidates_of(file: str) -> str:
    """The several texts for each prompt, of which a file of samples keeps one."""
    return _beside(file, "candidates")


def _beside(file: str, what: str) -> str:
    """A file by what it was made of; the run's own samples are called ``synthetic``."""
    if file.startswith("synthetic"):
        return file.replace("synthetic", what, 1)
    return file.replace(".jsonl", f"_{what}.jsonl")
