"""What the steps of a run are made from: the experiment, the run folder, and what a later draw asks for."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from commands.run.experiment.settings import DERIVED, FACTS, Experiment
from commands.run_folder.places import ROOT, absolute
from commands.run_folder.private_files import learnt_by_parser
from commands.run_folder.steps import ANNOTATED, PRIVATE_PARTS, File, InputFile, Role, Step
from commands.run_folder.systems import System
from datamodules.reading.columns import Columns, reference_columns
from doppel.errors import UserError
from doppel.settings.yaml_files import Settings, fill_in, read_yaml

#: Files that hold private lines under a run folder.
_PRIVATE = (ANNOTATED, *(f"data/{part}.jsonl" for part in PRIVATE_PARTS))


@dataclass(frozen=True)
class Wanted:
    """What a later draw asks for.

    Attributes:
        num: How many samples.
        seed: Of the draw; None: one that follows from the run's seed and the number of the draw.
        label: Samples for this label alone.
        topic: Samples of this topic alone.
        trees: File of trees, of which each gets one utterance.
        is_public: Whether anybody may see these trees.
        oversample: Samples that are written for each that is of the topic, or says the words.
        words: Words that samples are to say: those that do are kept apart, of a plain draw.
    """

    num: int = 1
    seed: int | None = None
    label: str | None = None
    topic: str | None = None
    trees: Path | None = None
    is_public: bool = False
    oversample: int = 1
    words: tuple[str, ...] = ()

    @property
    def role(self) -> Role:
        """Of the samples: those that were asked for by a label, a topic or trees tell nothing of shares."""
        is_plain = self.label is None and self.topic is None and self.trees is None
        return "more" if is_plain else "examples"

    @property
    def only(self) -> str | None:
        """Label or topic that all samples have; None: as the shares say."""
        return self.topic if self.label is None else self.label


@dataclass(frozen=True)
class StepContext:
    """What the steps of a run are made from.

    Attributes:
        experiment: What is run; in the recipe of a system as that system has it.
        folder: The run folder.
        overlays: Configurations on top of every training of a language model.
        columns: What the columns of the user's files are called; None: the usual names.
        parser: Checkpoint of the parser that annotates for the evaluation; None: there is none.
        train_path: The private file in place of the experiment's, once its trees are written.
        place: Folder of the steps in the run folder: a system's, or that of a later draw of it; "" of the whole run.
        draw: 1 for the run's own samples, more for what is sampled later (:mod:`commands.run.sample`).
        wanted: What a later draw asks for.
        learnt: Private files that the experiment's own parser learnt from without privacy.
    """

    experiment: Experiment
    folder: Path
    overlays: tuple[Settings, ...] = ()
    columns: Settings | None = None
    parser: str | None = None
    train_path: str | None = None
    place: str = ""
    draw: int = 1
    wanted: Wanted = Wanted()
    learnt: tuple[str, ...] = ()

    @classmethod
    def make(cls, experiment: Experiment, folder: Path, more_overlays: Iterable[str] = ()) -> StepContext:
        """Build the context of an experiment, before any of its steps; extra overlays are those of a kind of node."""
        columns = Columns.from_config(experiment.data).as_dict() or None
        learnt = tuple(learnt_by_parser(experiment.as_dict())) if experiment.is_private else ()
        overlays = _overlays(experiment, more_overlays)
        return cls(experiment, folder, overlays, columns, experiment.parser, learnt=learnt)

    def of(self, system: System) -> StepContext:
        """Return the run in the folder of a system, with the experiment as that has it."""
        place = system.name if self.draw == 1 else f"{system.name}/draws/{self.draw}"
        return replace(self, experiment=self.experiment.of(system.name), place=place)

    def learnt_by(self, parser: str | None) -> tuple[str, ...]:
        """Return the private files that a parser learnt from without privacy: a step that asks it reads them too."""
        return self.learnt if parser is not None and parser == self.experiment.parser else ()

    def at(self, name: str) -> str:
        """Return the path of a file or folder, by its place in the run folder."""
        return f"{self.place}/{name}" if self.place else name

    @property
    def role(self) -> Role:
        """Of the samples."""
        return "release" if self.draw == 1 else self.wanted.role

    def public(self, field: str, path: str | None) -> InputFile:
        """Return a file of public texts, with columns that are called as those of the private ones."""
        data = self.experiment.data
        columns = reference_columns(Columns.from_config(data))
        return InputFile(field, path, "public", columns, truncate=bool(data.get("truncate")))

    @property
    def reference(self) -> InputFile:
        """The public requests that samples are compared with."""
        return self.public("reference", self.experiment.reference)

    @property
    def is_exact(self) -> bool:
        """Whether shares are released as they are, which is not private."""
        return self.experiment.exact_histogram or not self.experiment.is_private

    def paid_by(self, system: System, *stages: str) -> list[str]:
        """Return the mechanisms that pay for a step with private input, by their ledger names; none without privacy."""
        return [f"{system.scope}/{stage}" for stage in stages] if self.experiment.is_private else []

    def budget(self, system: System) -> Settings:
        """Return the privacy arguments of all that a system spends: its ε, its scope and what words of it cost."""
        counted = self.experiment.counted_words
        words = {} if counted is None else {"words_noise_multiplier": counted.noise_multiplier}
        return {"target_epsilon": self.experiment.epsilon, "scope": system.scope, **words}

    def checkpoint(self, folder: str) -> str:
        """Return the checkpoint that a training of the run leaves."""
        return str(self.folder / folder / "checkpoints" / "last.ckpt")

    def step(
        self,
        name: str,
        command: str,
        config: Settings,
        *,
        writes: Iterable[File],
        reads: Iterable[object],
        names: Iterable[InputFile] = (),
        mechanisms: Iterable[str] = (),
        learnt: Iterable[str] = (),
    ) -> Step:
        """Build a step, leaving out what its configuration has as None, or of a training as empty.

        Of the user's files that it reads, or only names, it says how each is read (:class:`InputFile`). What it leaves
        depends on the private files ``learnt`` too, through a model, and it opens none of them.
        """
        place = self.at(name)
        folder = place if command in ("fit", "predict") else None
        config = {key: str(value) if isinstance(value, Path) else value for key, value in config.items()}
        config = {key: value for key, value in config.items() if value != (None if folder is None else {})}
        files = list(reads)
        inputs = [file for file in files if isinstance(file, InputFile)]
        behind = list(learnt)
        paths = self._places([*(file.path if isinstance(file, InputFile) else file for file in files), *behind])
        private = self._places([*(file.path for file in inputs if file.is_protected), *behind])
        private += tuple(path for path in paths if path in _PRIVATE and path not in private)
        return Step(
            place.replace("/", "-"),
            command,
            config,
            folder,
            writes=tuple(writes),
            reads=paths,
            protected=private,
            mechanisms=tuple(mechanisms),
            inputs=tuple(file for file in (*inputs, *names) if file.path is not None),
        )

    def _places(self, paths: Iterable[object]) -> tuple[str, ...]:
        """Files, those of the run by their place in it; None and the embedded grammar are none."""
        texts = [str(path) for path in paths if path is not None and not str(path).startswith("embedded:")]
        return tuple(dict.fromkeys(text.removeprefix(f"{self.folder}/") for text in texts))


def file_of(system: System, path: str, role: Role) -> File:
    """Return a file of the run, of a system and of the budget that pays for it."""
    return File(path, role, system.name, system.scope)


def read(experiment: Experiment, path: str) -> Settings:
    """Read a configuration file, with variables filled in and absolute paths."""
    return absolute(fill_in(read_yaml(ROOT / path, FACTS), {**os.environ, **experiment.environment}, path), FACTS)


def _overlays(experiment: Experiment, more: Iterable[str]) -> tuple[Settings, ...]:
    """The overlays of an experiment and of a kind of node, which must not touch what decides of the guarantee."""
    found = []
    for path in dict.fromkeys(absolute([*experiment.overlays, *more], FACTS.at("overlays"))):
        overlay = read(experiment, path)
        if "privacy" in overlay and overlay["privacy"] is None:
            raise UserError(f"{path} takes privacy away, which an overlay cannot: `epsilon: inf` trains without")
        for name in DERIVED.keys() & (overlay.get("privacy") or {}).keys():
            raise UserError(
                f"privacy.{name} follows from the field {DERIVED[name]} of the experiment: set that", about=path
            )
        found.append(overlay)
    return tuple(found)
