"""Makes steps: the words, the configuration and the files of each."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from commands.run.configs import Configs
from commands.run.settings import Experiment
from commands.runs.steps import ANNOTATED, PRIVATE_PARTS, PUBLIC_TREES, File, Kind, Role, Step
from commands.runs.system import System
from commands.runs.yaml_files import Settings, merge
from datamodules.columns import Columns

#: Files that hold private lines under a run folder.
_PRIVATE = (ANNOTATED, *(f"data/{part}.jsonl" for part in PRIVATE_PARTS))
#: Folders of what the report tells.
_RESULTS = ("evaluation", "parser_metrics")


class StepBase:
    """Makes steps of one run that belong to no system, and the parts of all others.

    Formal guarantees:
        Where a public parser writes the trees of the private utterances, a tree is a function of its utterance and of
        this parser: utterances go through it one by one (``max_rows`` 1), so that no rounding in a batch lets one unit
        change another's tree. A neighbour of the private file is then a neighbour of the annotated one, with the same
        units, and what trains on that is as private as what would train on private trees.

    Args:
        experiment: What is run.
        run: The run folder.
        overlays: Configuration files that the kind of node adds to every training of a language model.

    Attributes:
        parser: Checkpoint of the parser that annotates for the evaluation; None: there is none.
        train_path: The private file in place of the experiment's, once its trees are written.
        columns: What the columns of the user's files are called, as JSON; None: the usual names.
    """

    def __init__(self, experiment: Experiment, run: Path, overlays: Iterable[str] = ()) -> None:
        self.experiment, self.run = experiment, run
        self.configs = Configs(experiment, run, overlays)
        self.parser = experiment.parser
        self.train_path: str | None = None
        columns = Columns.from_config(experiment.data).as_dict()
        self.columns = json.dumps(columns) if columns else None

    def fit_parser(self, name: str, layer: str, files: list[str] | None = None) -> Step:
        """Train a semantic parser, without privacy.

        Args:
            name: Its step, and its folder.
            layer: Stage of the experiment whose sections win over those of ``parser``.
            files: Training files in place of the experiment's.
        """
        config = self.configs.parser(layer, files)
        data = config["data"]["init_args"]
        reads = [*data.get("train_paths", ()), data.get("val_path"), data.get("test_path")]
        writes = [File(f"{name}/checkpoints/last.ckpt", "checkpoint")]
        return self._lightning(name, "fit", config, writes=writes, reads=reads)

    def annotate_private(self, parser: str, path: str, unit: str | None = None) -> Step:
        """Trees for the private utterances, each by itself; the models of what follows train on them.

        Args:
            parser: Checkpoint of a parser that is public.
            path: The private file.
            unit: Whom the guarantee protects; None: an utterance.
        """
        columns = None if self.columns is None else json.loads(self.columns)
        config = self.configs.annotation(path, unit or "utterance", columns, max_rows=1)
        self.train_path = str(self.run / ANNOTATED)
        return self._annotate("private", config, parser, ANNOTATED, "private", protected=[path])

    def public_trees(self) -> Step:
        """The trees of the reference, of whose names the models of trees write."""
        reference = self.experiment.reference
        options = {"reference": reference, "out": self.run / PUBLIC_TREES, "columns": self.columns}
        writes = [File(PUBLIC_TREES, "data")]
        return self.tool("public_trees", "tool", ["public-trees"], options, writes=writes, reads=[reference])

    def annotate(self, name: str, path: object, parser: str, writes: str, system: System | None = None) -> Step:
        """Trees that a parser writes for the utterances of a file.

        Args:
            name: Of the step, behind ``annotate_``.
            path: The file.
            parser: The parser's checkpoint.
            writes: What to write, in the run folder.
            system: Whose samples these are; None where they are nobody's.
        """
        config = self.configs.annotation(str(path), "utterance", None, max_rows=None)
        return self._annotate(name, config, parser, writes, "data", system)

    def report(self, steps: Iterable[Step]) -> list[Step]:
        """The report, with page and card, made anew every time, of a run that has something to tell."""
        files = [file for step in steps for file in step.writes]
        results = [f.path for f in files if f.role == "metrics" and Path(f.path).parts[0] in _RESULTS]
        samples = [f.path for f in files if f.role == "release"]
        if not results and not samples:
            return []
        names = ["report.html", "report.json"]
        names += ["privacy_card.json", "privacy_card.txt"] if self.experiment.is_private else []
        writes = tuple(File(name, "report") for name in names)
        return [Step("report", "tool", ("page", str(self.run)), None, False, writes, tuple(results or samples))]

    def tool(
        self,
        name: str,
        kind: Kind,
        words: Iterable[object],
        options: Settings,
        *,
        writes: Iterable[File],
        reads: Iterable[object],
        protected: Iterable[object] = (),
        mechanisms: Iterable[str] = (),
    ) -> Step:
        """A step that trains nothing; options without a value are left out."""
        flags = {f"--{option.replace('_', '-')}": value for option, value in options.items() if value is not None}
        argv = (*words, *(word for option, value in flags.items() for word in (option, value)))
        return self._step(name, kind, tuple(map(str, argv)), None, writes, reads, protected, mechanisms)

    def checkpoint(self, folder: str) -> str:
        """The checkpoint that a training of the run leaves."""
        return str(self.run / folder / "checkpoints" / "last.ckpt")

    def _annotate(
        self,
        name: str,
        config: Settings,
        parser: str,
        writes: str,
        role: Role,
        system: System | None = None,
        protected: Iterable[object] = (),
    ) -> Step:
        overlay = self.configs.writing("annotate", str(self.run / writes), name)
        return self._lightning(
            f"annotate_{name}",
            "predict",
            merge(overlay, config, {"ckpt_path": parser}),
            writes=[self._file(file, role, system) for file in (writes, f"{writes}.metrics.json")],
            reads=[config["data"]["init_args"]["path"], parser],
            protected=protected,
        )

    def _lightning(
        self,
        name: str,
        verb: Literal["fit", "predict"],
        config: Settings,
        folder: str | None = None,
        *,
        writes: Iterable[File],
        reads: Iterable[object],
        protected: Iterable[object] = (),
        mechanisms: Iterable[str] = (),
    ) -> Step:
        """A step of LightningCLI."""
        words = (verb, "--config", str(self.run / "configs" / f"{name}.yaml"))
        words += ("--run_dir", str(self.run / (folder or name)))
        config = {key: value for key, value in config.items() if value != {}}
        return self._step(name, verb, words, config, writes, reads, protected, mechanisms)

    def _step(
        self,
        name: str,
        kind: Kind,
        argv: tuple[str, ...],
        config: Settings | None,
        writes: Iterable[File],
        reads: Iterable[object],
        protected: Iterable[object],
        mechanisms: Iterable[str],
    ) -> Step:
        paths, private = self._places(reads), self._places(protected)
        private += tuple(path for path in paths if path in _PRIVATE and path not in private)
        return Step(name, kind, argv, config, True, tuple(writes), paths, private, tuple(mechanisms))

    def _places(self, paths: Iterable[object]) -> tuple[str, ...]:
        """Files, those of the run by their place in it; None and the embedded grammar are none."""
        texts = [str(path) for path in paths if path is not None and not str(path).startswith("embedded:")]
        return tuple(dict.fromkeys(text.removeprefix(f"{self.run}/") for text in texts))

    def _file(self, path: str, role: Role, system: System | None) -> File:
        """A file of the run, of a system and of the budget that pays for it."""
        return File(path, role) if system is None else File(path, role, system.name, system.scope)
