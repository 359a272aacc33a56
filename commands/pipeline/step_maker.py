"""Makes the steps that the recipes list, each with its words, its configuration and its files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from commands.pipeline.configs import Configs
from commands.pipeline.settings import Calibration, Experiment, Topics
from commands.pipeline.steps import ANNOTATED, PRIVATE_PARTS, File, Kind, Role, Step
from commands.pipeline.system import System, candidates_of, pool_of
from commands.pipeline.yaml_files import Settings, merge
from datamodules.columns import Columns

#: Files that hold private lines under a run folder.
_PRIVATE = (ANNOTATED, *(f"data/{part}.jsonl" for part in PRIVATE_PARTS))
Shares = Calibration | Topics


class StepMaker:
    """Makes the steps of one run.

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
        self.configs = Configs(experiment, overlays)
        self.parser = experiment.parser
        self.train_path: str | None = None
        columns = Columns.from_config(experiment.section("data")).as_dict()
        self.columns = json.dumps(columns) if columns else None

    @property
    def topics(self) -> Topics:
        """How utterances without labels get some."""
        return self.experiment.topics or Topics()

    def calibration(self, system: System) -> Calibration | None:
        """How the experiment draws samples of a system from an over-sample; None: as they are sampled."""
        wanted = self.experiment.calibration
        return None if wanted is None or (wanted.of == "trees" and not system.has_trees) else wanted

    def steps(self, system: System) -> list[Step]:
        """From private turns to the samples of a system and their metrics; or a training alone."""
        return [] if system.recipe is None else [*system.recipe(self, system), *self.evaluate(system)]

    def fit(self, system: System, stage: str, shares: Shares | None = None, changes: Settings | None = None) -> Step:
        """Train a language model on the private turns.

        Args:
            system: Whose settings and budget it has.
            stage: Which of its models.
            shares: What its samples are drawn by, which its budget pays for.
            changes: Sections of an experiment that the system sets.
        """
        given, folder = self.experiment, system.model(stage)
        epochs = {name: _plain(given.epochs_of(name)) for name in system.stages}
        derived: Settings = {"trainer": {"max_epochs": epochs[stage]}, "data": {}, "privacy": {}}
        if given.is_private:
            budget = {"target_epsilon": given.epsilon, "epochs": list(epochs.values()), "scope": system.scope}
            derived["privacy"] = budget
            if given.exact_histogram or shares is not None:
                sigma = None if given.exact_histogram or shares is None else shares.noise_multiplier
                derived["privacy"] = {**budget, "histogram_noise_multiplier": sigma}
        else:
            derived["data"] = {"sampling": "shuffle"}
        config = self.configs.training(system, stage, changes or {}, derived, given.is_private)
        data = config["data"]["init_args"]
        if self.train_path is not None:  # wins over --set, whose file it was made of
            data["train_path"] = self.train_path
            data.pop("columns", None)  # it has the usual ones
        start = config["model"]["init_args"].get("init_weights")
        paths = [data.get("train_path"), data.get("val_path")]
        return self._lightning(
            folder,
            "fit",
            config,
            writes=[self._file(f"{folder}/checkpoints/last.ckpt", "checkpoint", system)],
            reads=[*paths, start and f"{start}/checkpoints/last.ckpt"],
            protected=paths[:1] if data.get("val_is_public") else paths,
        )

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

    def trees(
        self, system: System, stage: str, shares: Shares | None = None, changes: Settings | None = None
    ) -> list[Step]:
        """Trees of a model, which are the prompts of another; drawn by their shares where an experiment asks for it."""
        writes = str(system.prompts)
        is_drawn = shares is not None and shares.of == "trees"
        pool = self._file(pool_of(writes), "pool", system) if is_drawn else self._file(writes, "prompts", system)
        steps = [self._sample(system, stage, "trees", pool, shares, changes)]
        return [*steps, self._calibrate(system, stage, "trees", writes, shares)] if is_drawn and shares else steps

    def utterances(
        self,
        system: System,
        stage: str,
        shares: Shares | None = None,
        keeps_best: bool = False,
        changes: Settings | None = None,
    ) -> list[Step]:
        """The samples of a system; of several for each prompt one is kept, where an experiment asks for it.

        Args:
            system: Whose samples.
            stage: Which of its models writes them.
            shares: What samples are drawn by.
            keeps_best: Whether one of several is kept where an experiment asks for candidates.
            changes: Sections of an experiment that the system sets.
        """
        writes, part = system.synthetic, "utterances" if system.has_trees else system.name
        if keeps_best and self.experiment.candidates > 1:
            candidates = self._file(candidates_of(writes), "candidates", system)
            drawn = self._sample(system, stage, part, candidates, shares, changes, self.experiment.candidates)
            return [drawn, self._keep_best(system, part)]
        if shares is not None and shares.of == "utterances":
            pool = self._file(pool_of(writes), "pool", system)
            drawn = self._sample(system, stage, part, pool, shares, changes)
            return [drawn, self._calibrate(system, stage, part, writes, shares)]
        return [self._sample(system, stage, part, self._file(writes, "release", system), shares, changes)]

    def histogram(self, system: System, stage: str) -> Step:
        """Prompts of a model of labels, from a noised histogram of the private ones."""
        given, prompts = self.experiment, str(system.prompts)
        train, told = self._private_file(system), f"{Path(prompts).stem}.histogram.json"
        options = {"out": self.run / prompts, "num_samples": given.num_samples, "labels": given.labels}
        return self.tool(
            "histogram",
            "tool",
            ["histogram", self.run / system.model(stage), *self._exact()],
            {**options, "seed": given.seed},
            writes=[self._file(prompts, "prompts", system), self._shares(told, system)],
            reads=[self.checkpoint(system.model(stage)), given.labels, train],
            protected=[train],
        )

    def evaluate(self, system: System) -> list[Step]:
        """Compare a system's samples with the reference, if there are both."""
        given, data = self.experiment, self.experiment.section("data")
        if not system.learns or (given.reference is None and given.adaptation is None):
            return []
        reference = given.reference or self.run / "data" / "test.jsonl"
        private = (self.train_path or data.get("train_path")) if given.compare_with_private else None
        out, parsed = f"evaluation/{system.name}.json", f"evaluation/{system.name}.parsed.jsonl"
        options = {
            "synthetic": self.run / system.synthetic,
            "reference": reference,
            "out": self.run / out,
            "featurizer": given.featurizer,
            "private": private,
            "seed": given.seed,
            "parser": self.parser,
            "save_parsed": self.run / parsed if self.parser else None,
            "keep_function": data.get("keep_function"),
            "columns": self.columns,
        }
        writes = [self._file(out, "metrics", system)]
        writes += [self._file(parsed, "data", system)] if self.parser else []
        reads = [system.synthetic, reference, self.parser, private]
        name = f"evaluate_{system.name}"
        return [self.tool(name, "metrics", ["evaluate"], options, writes=writes, reads=reads, protected=[private])]

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
        """The report, or the page alone, made anew every time, of a run that has something to tell."""
        files = [file for step in steps for file in step.writes]
        results = [f.path for f in files if f.role == "metrics" and Path(f.path).parts[0] in _RESULTS]
        samples = [f.path for f in files if f.role == "release"]
        if not results and not samples:
            return []
        verb = "report" if results else "page"  # without a reference there is nothing but the samples and their privacy
        names = ["report.html"]
        if verb == "report":
            names += ["report.json", *(["privacy_card.json", "privacy_card.txt"] if self.experiment.is_private else [])]
        writes = tuple(File(name, "report") for name in names)
        return [Step(verb, "tool", (verb, str(self.run)), None, False, writes, tuple(results or samples))]

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
    ) -> Step:
        """A step that trains nothing; options without a value are left out."""
        given = {f"--{option.replace('_', '-')}": value for option, value in options.items() if value is not None}
        argv = (*words, *(word for option, value in given.items() for word in (option, value)))
        return self._step(name, kind, tuple(map(str, argv)), None, writes, reads, protected)

    def checkpoint(self, folder: str) -> str:
        """The checkpoint that a training of the run leaves."""
        return str(self.run / folder / "checkpoints" / "last.ckpt")

    def _sample(
        self,
        system: System,
        stage: str,
        part: str,
        writes: File,
        shares: Shares | None,
        changes: Settings | None,
        candidates: int = 1,
    ) -> Step:
        """A pass of ``predict`` over a trained model."""
        data: Settings = {"num_samples": self.experiment.num_samples * candidates}
        if shares is not None and (writes.role == "pool" or shares.of == "utterances"):  # and what leads to these
            data["num_samples"] *= shares.oversample
        if system.prompts is not None and writes.path not in (system.prompts, pool_of(system.prompts)):
            data["prompts_path"] = str(self.run / system.prompts)
        config = self.configs.sampling(system, stage, changes or {}, data)
        source = system.named(stage) if system.has_trees else system.name
        name = system.named(part) if system.has_trees else part
        tables = config["model"]["init_args"]["sampling"].get("grammar") or ()
        return self._predict(
            f"sample_{name}",
            merge(self.configs.writing("sample", str(self.run / writes.path), source), config),
            self.checkpoint(system.model(stage)),
            f"sample_{source}",
            writes=[writes, self._file(f"{writes.path}.metrics.json", "metrics", system)],
            reads=[self.checkpoint(system.model(stage)), data.get("prompts_path"), *tables],
        )

    def _keep_best(self, system: System, part: str) -> Step:
        """Keep one of the candidates of each tree, or of each label."""
        given, candidates = self.experiment, candidates_of(system.synthetic)
        parser = given.public_parser if system.has_trees else None
        words = json.dumps(given.label_words) if given.label_words and not system.has_trees else None
        files = {"candidates": candidates, "prompts": str(system.prompts), "out": system.synthetic}
        return self.tool(
            f"choose_{system.named(part) if system.has_trees else part}",
            "metrics",
            ["keep-best"],
            {
                **{option: self.run / file for option, file in files.items()},
                "parser": parser,
                "label_words": words,
                "seed": given.seed,
            },
            writes=[
                self._file(system.synthetic, "release", system),
                self._file(f"{system.synthetic}.kept.json", "metrics", system),
            ],
            reads=[candidates, system.prompts, parser],
        )

    def _calibrate(self, system: System, stage: str, part: str, writes: str, shares: Shares) -> Step:
        """Draw from an over-sample; a system that samples from another's models reads what that released."""
        given, folder, options = self.experiment, system.model(stage), Settings()
        if isinstance(shares, Topics):
            options = {"num_topics": shares.num_topics, "texts": shares.texts, "encoder": shares.encoder}
        elif shares.of == "utterances":
            options = {"parser": given.public_parser}
        role: Role = "release" if writes == system.synthetic else "prompts"
        made = [self._file(writes, role, system), self._file(f"{writes}.calibration.json", "metrics", system)]
        released = [self._shares(f"{folder}/marginals.json", system)]
        if isinstance(shares, Topics):
            released.append(self._file(f"{folder}/codebook.jsonl", "data", system))
        releases = system.models_of is None
        train = self._private_file(system) if releases else None
        files = {"pool": self.run / pool_of(writes), "out": self.run / writes}
        return self.tool(
            f"calibrate_{system.named(part) if system.has_trees else part}",
            "metrics" if options else "tool",  # a parser or an encoder runs
            ["calibrate", self.run / folder, *self._exact()],
            {**files, "num_samples": given.num_samples, **options, "seed": given.seed},
            writes=[*made, *(released if releases else [])],
            reads=[
                files["pool"],
                *([] if releases else [file.path for file in released]),
                self.checkpoint(folder),
                options.get("parser"),
                options.get("texts"),
                train,
            ],
            protected=[train],
        )

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
        return self._predict(
            f"annotate_{name}",
            merge(self.configs.writing("annotate", str(self.run / writes), name), config),
            parser,
            f"annotate_{name}",
            writes=[self._file(file, role, system) for file in (writes, f"{writes}.metrics.json")],
            reads=[config["data"]["init_args"]["path"], parser],
            protected=protected,
        )

    def _predict(
        self,
        name: str,
        config: Settings,
        checkpoint: str,
        folder: str,
        *,
        writes: Iterable[File],
        reads: Iterable[object],
        protected: Iterable[object] = (),
    ) -> Step:
        config["ckpt_path"] = checkpoint
        return self._lightning(name, "predict", config, folder, writes=writes, reads=reads, protected=protected)

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
    ) -> Step:
        """A step of LightningCLI."""
        words = (verb, "--config", str(self.run / "configs" / f"{name}.yaml"))
        words += ("--run_dir", str(self.run / (folder or name)))
        config = {key: value for key, value in config.items() if value != {}}
        return self._step(name, verb, words, config, writes, reads, protected)

    def _step(
        self,
        name: str,
        kind: Kind,
        argv: tuple[str, ...],
        config: Settings | None,
        writes: Iterable[File],
        reads: Iterable[object],
        protected: Iterable[object],
    ) -> Step:
        paths, private = self._places(reads), self._places(protected)
        private += tuple(path for path in paths if path in _PRIVATE and path not in private)
        return Step(name, kind, argv, config, True, tuple(writes), paths, private)

    def _places(self, paths: Iterable[object]) -> tuple[str, ...]:
        """Files, those of the run by their place in it; None and the embedded grammar are none."""
        texts = [str(path) for path in paths if path is not None and not str(path).startswith("embedded:")]
        return tuple(dict.fromkeys(text.removeprefix(f"{self.run}/") for text in texts))

    def _file(self, path: str, role: Role, system: System | None) -> File:
        """A file of the run, of a system and of the scope that pays for it."""
        return File(path, role) if system is None else File(path, role, system.name, system.scope)

    def _shares(self, path: str, system: System) -> File:
        """Released shares: with their noise numbers like any others, without it private."""
        return self._file(path, "private" if self._exact() else "metrics", system)

    def _exact(self) -> list[str]:
        """The word that releases shares as they are, which is not private."""
        return ["--exact"] if self.experiment.exact_histogram or not self.experiment.is_private else []

    def _private_file(self, system: System) -> str | None:
        """What a system trains on."""
        own = self.experiment.variants.get(system.name, {}).get("data", {})
        merged: dict[str, Any] = merge(self.experiment.data, own, self.experiment.overrides.get("data", {}))
        return self.train_path or merged.get("train_path")


#: Folders of what the report tells.
_RESULTS = ("evaluation", "parser_metrics")


def _plain(number: float) -> float:
    return int(number) if float(number).is_integer() else number
