"""The stages of an experiment, as data: what each one runs, after which others, with which configuration."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from commands.pipeline.experiment import (
    DERIVED,
    ROOT,
    SECTIONS,
    Calibration,
    Experiment,
    Settings,
    Topics,
    fill_in,
    merge,
    read_yaml,
)
from commands.pipeline.steps import File, Kind, Role, Step
from commands.pipeline.systems import MODEL_FILES, SYSTEMS, Sampling, System, Training, pool_of
from commands.pipeline.systems import system as system_of
from datamodules.columns import Columns
from doppel.errors import UserError

DATA = "datamodules.dialogue_data_module.DialogueDataModule"
WRITER = "callbacks.synthetic_writer.SyntheticWriter"
#: Private utterances with the trees that a parser of public turns wrote, in the run folder.
PRIVATE = "data/private_annotated.jsonl"
#: Parts of a split that hold private turns.
PRIVATE_PARTS = ("private", "private_gold", "full")


class Stages:
    """Lists the stages of an experiment, in an order in which they can be run.

    Formal guarantees:
        Where a public parser writes the trees of the private utterances, a tree is a function of its utterance and of
        this parser: utterances go through it one by one (``max_rows`` 1), so that no rounding in a batch lets one unit
        change another's tree. A neighbour of the private file is then a neighbour of the annotated one, with the same
        units, and what trains on that is as private as what would train on private trees.

    Args:
        experiment: What is run.
        run: The run folder.
        overlays: Configuration files that the kind of node adds to every training of a language model.
    """

    def __init__(self, experiment: Experiment, run: Path, overlays: Iterable[str] = ()) -> None:
        self.experiment = experiment
        self.run = run
        self.listed: list[Step] = []
        self.fit_after: tuple[str, ...] = ()  # what writes the training file
        self.evaluate_after: tuple[str, ...] = ()  # what trains the parser of the evaluation
        self.parser = experiment.parser
        self.train_path: str | None = None  # in place of the experiment's
        columns = Columns.from_config(experiment.section("data")).as_dict()
        self.columns = json.dumps(columns) if columns else None  # of the user's files
        self.overlays = [self._overlay(path) for path in dict.fromkeys([*experiment.overlays, *overlays])]

    def all(self) -> list[Step]:
        """All stages."""
        given, data = self.experiment, self.experiment.section("data")
        if given.write_parses:
            self.annotate_private(str(given.public_parser), data["train_path"], (), data.get("unit"))
        for system in self.experiment.used:
            self.synthesise(system)
        self.report()
        return self.listed

    def annotate_private(self, parser: str, path: str, needs: tuple[str, ...], unit: str | None = None) -> None:
        """Trees for the private utterances, each by itself; the models of what follows train on them.

        Args:
            parser: Checkpoint of a parser that is public, or made of what was released.
            path: The private file.
            needs: Stages that write either.
            unit: Whom the guarantee protects; None: an utterance.
        """
        self.annotate("private", path, parser, PRIVATE, needs, unit or "utterance", self.columns, 1, "private")
        self.fit_after, self.train_path = ("annotate_private",), str(self.run / PRIVATE)

    def annotate(
        self,
        name: str,
        path: str,
        parser: str,
        writes: str,
        needs: tuple[str, ...],
        unit: str = "utterance",
        columns: str | None = None,
        max_rows: int | None = None,
        role: Role = "data",
        system: System | None = None,
    ) -> None:
        """Trees that a parser writes for the utterances of a file.

        Args:
            name: Of the stage, behind ``annotate_``.
            path: The file.
            parser: The parser's checkpoint.
            writes: What to write, in the run folder.
            needs: Stages that write either.
            unit: Whose line it is; ``utterance`` writes none.
            columns: What the columns of the file are called, as JSON; None: the usual names.
            max_rows: Most utterances that are parsed together; None: as in the parser's file.
            role: Of what is written.
            system: Whose samples these are; None where they are nobody's.
        """
        model: Settings = merge(self._file(MODEL_FILES["parser"])["model"], {})
        if max_rows is not None:
            model["init_args"]["max_rows"] = max_rows
        data: Settings = {"path": path, "unit": unit}
        if columns is not None:
            data["columns"] = json.loads(columns)
        config: Settings = {"model": model, "data": {"init_args": data}, "ckpt_path": parser}
        # parsed lines of private turns hold them
        files = [self.file(file, role, system) for file in (writes, f"{writes}.metrics.json")]
        protected = [path] if role == "private" else []
        self.predict(f"annotate_{name}", needs, "annotate", config, name, files, [path, parser], protected)

    def report(self) -> None:
        """The report, or the page alone, made anew every time, of a run that has something to tell."""
        results = tuple(stage.name for stage in self.listed if stage.name.startswith(("evaluate_", "score_")))
        samples = tuple(self.writer(system) for system in self.experiment.used if system.samplings)
        if results or samples:  # without a reference there is nothing to report but the samples and their privacy
            verb = "report" if results else "page"
            self.listed.append(self._report(verb, results or samples))

    def _report(self, verb: str, needs: tuple[str, ...]) -> Step:
        names = ["report.html"]
        if verb == "report":
            names += ["report.json", *(["privacy_card.json", "privacy_card.txt"] if self.experiment.is_private else [])]
        reads = [file.path for step in self.listed for file in step.writes if file.role in ("release", "metrics")]
        writes = tuple(File(name, "report") for name in names)
        return Step(verb, "tool", needs, (verb, str(self.run)), is_once=False, writes=writes, reads=self.read(reads))

    def file(self, path: str, role: Role, system: System | None = None) -> File:
        """A file of the run, of a system and of the scope that pays for it."""
        return File(path, role) if system is None else File(path, role, system.name, system.scope)

    def read(self, paths: Iterable[object]) -> tuple[str, ...]:
        """Files, those of the run by their place in it; None and the embedded grammar are none."""
        texts = [str(path) for path in paths if path is not None and not str(path).startswith("embedded:")]
        return tuple(dict.fromkeys(text.removeprefix(f"{self.run}/") for text in texts))

    def synthesise(self, system: System) -> None:
        """From private turns to samples and their metrics."""
        epochs = [self.experiment.epochs_of(training.settings) for training in system.trainings if system.samplings]
        for place, training in enumerate(system.trainings):
            self.fit(training, system, epochs, place)
        if system.name == "domain":
            self.histogram(system)
        for sampling in system.samplings:
            self.sample(sampling, system)
        if system.samplings:
            self.evaluate(system.name, system.synthetic, self.writer(system))

    def fit(self, training: Training, system: System, epochs: list[float], place: int) -> None:
        """Train a language model, or a parser that stands alone.

        Args:
            training: The model.
            system: Whose settings and budget it has.
            epochs: Of every training that shares the budget; empty for a training without one.
            place: Which of them is this one.
        """
        experiment, settings = self.experiment, training.settings
        if settings.startswith("parser"):
            return self.fit_parser(training.folder, settings)
        derived: dict[str, Settings] = {name: {} for name in SECTIONS}
        private = bool(epochs) and experiment.is_private
        if private:
            budget = [_plain(number) for number in epochs]
            derived["privacy"] = {"target_epsilon": experiment.epsilon, "epochs": budget, "scope": system.scope}
        else:
            derived["data"] |= {"sampling": "shuffle"} if epochs else {"sampling": "shuffle", "is_public": True}
        if epochs:
            derived["trainer"]["max_epochs"] = _plain(epochs[place])
        if experiment.exact_histogram:
            derived["privacy"]["histogram_noise_multiplier"] = None
        elif (shares := self.drawn(system)) is not None:
            derived["privacy"]["histogram_noise_multiplier"] = shares[1].noise_multiplier
        file = self._file(MODEL_FILES[settings])
        sections = self._sections(file, settings, system, (derived, *map(_sections_of, self.overlays)))
        if self.train_path is not None:  # wins over --set, whose file it was made of
            sections["data"]["train_path"] = self.train_path
            sections["data"].pop("columns", None)  # it has the usual ones
        config = self._training(file, sections, DATA)
        config |= {"privacy": sections["privacy"]} if private else {"privacy": None, "not_private": True}
        own, weights = sections["data"], sections["model"].get("init_weights")
        weights = weights and f"{weights}/checkpoints/last.ckpt"
        protected = [own.get("train_path"), None if own.get("val_is_public") else own.get("val_path")]
        self._stage(
            training.folder,
            "fit",
            self.fit_after,
            config,
            writes=[self.file(f"{training.folder}/checkpoints/last.ckpt", "checkpoint", system)],
            reads=[own.get("train_path"), own.get("val_path"), weights],
            protected=[] if own.get("is_public") else protected,
        )

    def sample(self, sampling: Sampling, system: System) -> None:
        """Sample from a trained model."""
        experiment, needs = self.experiment, [sampling.model]
        file = self._file(MODEL_FILES[sampling.settings])
        adapters = [{"model": s["model"]} for s in map(_sections_of, self.overlays) if "lora" in s["model"]]
        sections = self._sections(file, sampling.settings, system, adapters)
        way = sections["sampling"] = self._sections(file, sampling.settings, system)["sampling"]
        if sampling.settings != "parse_tree":
            way.pop("grammar", None)  # of trees alone
        for name in ("optimizer", "lr_scheduler", "init_weights"):  # of trainings
            sections["model"].pop(name, None)
        chooses = sampling.chooses(experiment.candidates)
        given: Settings = {"num_samples": experiment.num_samples * (experiment.candidates if chooses else 1)}
        drawn, how = self.drawn(system) or (None, None)
        if how is not None and drawn in (sampling, system.samplings[-1]):  # what leads to it as well
            given["num_samples"] *= how.oversample
        writes = sampling.candidates if chooses else sampling.writes
        if sampling.prompts is not None:
            given["prompts_path"] = str(self.run / sampling.prompts)
            trees = "histogram" if system.name == "domain" else system.samplings[0].name
            needs.append(trees.replace("sample", "calibrate", 1) if drawn is system.samplings[0] else trees)
        role: Role = "candidates" if chooses else "release" if sampling is system.samplings[-1] else "prompts"
        if drawn is sampling:
            writes, role = pool_of(writes), "pool"
        trainer = {k: v for k, v in sections["trainer"].items() if k in ("accelerator", "devices", "logger")}
        config: Settings = {
            "trainer": trainer,
            "data": {"init_args": given},
            "ckpt_path": self.checkpoint(sampling.model),
        }
        if experiment.seed is not None:
            way["seed"] = config["seed_everything"] = experiment.seed
        config["model"] = _model(file, sections)
        files = [self.file(writes, role, system), self.file(f"{writes}.metrics.json", "metrics", system)]
        reads = [config["ckpt_path"], given.get("prompts_path"), *(way.get("grammar") or ())]
        self.predict(sampling.name, needs, "sample", config, sampling.source, files, reads)
        if chooses:
            self.choose(sampling, system)
        elif how is not None and drawn is sampling:
            self.calibrate(sampling, system, how)

    def choose(self, sampling: Sampling, system: System) -> None:
        """Keep one of the candidates of each tree, or of each code."""
        given, options = self.experiment, Settings()
        if sampling.settings != "domain":
            options = {"parser": given.public_parser}
        elif given.label_words:
            options = {"label_words": json.dumps(given.label_words)}
        names = {"candidates": sampling.candidates, "prompts": sampling.prompts, "out": sampling.writes}
        options = {**{option: self.run / str(file) for option, file in names.items()}, **options}
        self.tool(
            self.writer(system),
            "metrics",
            (sampling.name,),
            "keep-best",
            **options,
            seed=given.seed,
            writes=[
                self.file(sampling.writes, "release", system),
                self.file(f"{sampling.writes}.kept.json", "metrics", system),
            ],
            reads=[sampling.candidates, sampling.prompts, options.get("parser")],
        )

    def writer(self, system: System) -> str:
        """The stage that writes a system's samples."""
        last = system.samplings[-1]
        if (shares := self.drawn(system)) is not None and shares[0] is last:
            return _calibrate(last)
        return last.name.replace("sample", "choose", 1) if last.chooses(self.experiment.candidates) else last.name

    def drawn(self, system: System) -> tuple[Sampling, Calibration | Topics] | None:
        """The pass of a system whose texts are drawn from an over-sample by noised shares, and of what."""
        if system.name == "topics":
            return system.samplings[-1], self.experiment.topics or Topics()
        wanted = self.experiment.calibration
        found = None if wanted is None else system.calibrated(wanted.of)
        return None if wanted is None or found is None else (found, wanted)

    def calibrate(self, sampling: Sampling, system: System, how: Calibration | Topics) -> None:
        """Draw from an over-sample; a system that samples from another's models reads what that released."""
        given, options = self.experiment, {}
        source = None if system.models_of is None else self.drawn(SYSTEMS[system.models_of])
        first = () if source is None else (_calibrate(source[0]),)
        if isinstance(how, Topics):
            options = {"num_topics": how.num_topics, "texts": how.texts, "encoder": how.encoder}
        elif how.of == "utterances":
            options = {"parser": given.public_parser}
        pool, told = pool_of(sampling.writes), f"{sampling.writes}.calibration.json"
        role: Role = "release" if sampling is system.samplings[-1] else "prompts"
        writes = [self.file(sampling.writes, role, system), self.file(told, "metrics", system)]
        released = [self.shares(f"{sampling.model}/marginals.json", system)]
        if isinstance(how, Topics):
            released.append(self.file(f"{sampling.model}/codebook.jsonl", "data", system))
        if source is None:
            writes += released
        train = self._train_path(system)
        self.tool(
            _calibrate(sampling),
            "metrics" if options else "tool",  # a parser or an encoder runs
            (sampling.name, *first),
            "calibrate",
            str(self.run / sampling.model),
            *self._exact(),
            pool=self.run / pool,
            out=self.run / sampling.writes,
            num_samples=given.num_samples,
            **options,
            seed=given.seed,
            writes=writes,
            reads=[
                self.checkpoint(sampling.model),
                pool,
                options.get("parser"),
                options.get("texts"),
                *([train] if source is None else [file.path for file in released]),
            ],
            protected=[train] if source is None else [],
        )

    def shares(self, path: str, system: System) -> File:
        """Released shares: with their noise numbers like any others, without it private."""
        return self.file(path, "private" if self._exact() else "metrics", system)

    def _train_path(self, system: System) -> str | None:
        """The private file of a system."""
        own = self.experiment.variants.get(system.name, {}).get("data", {})
        path = merge(self.experiment.data, own, self.experiment.overrides.get("data", {})).get("train_path")
        return self.train_path or path

    def predict(
        self,
        name: str,
        needs: Iterable[str],
        overlay: str,
        config: Settings,
        source: str,
        writes: list[File],
        reads: Iterable[object],
        protected: Iterable[object] = (),
    ) -> None:
        """A pass of ``predict`` that writes JSON lines, the first of ``writes``, each with its ``source``."""
        base = self._file(f"configs/overlays/{overlay}.yaml")
        for callback in base["trainer"]["callbacks"]:
            if callback["class_path"] == WRITER:
                callback["init_args"] |= {"output_path": str(self.run / writes[0].path), "stage": source}
        folder = name if name.startswith("annotate_") else f"sample_{source}"
        self._stage(name, "predict", tuple(needs), merge(base, config), folder, writes, reads, protected)

    def tool(
        self,
        name: str,
        kind: Kind,
        needs: tuple[str, ...],
        *words: str,
        writes: Iterable[File],
        reads: Iterable[object],
        protected: Iterable[object] = (),
        **options: object,
    ) -> None:
        """A stage that trains nothing; options without a value are left out."""
        given = {f"--{option.replace('_', '-')}": value for option, value in options.items() if value is not None}
        more = [word for option, value in given.items() for word in (option, str(value))]
        step = Step(name, kind, needs, (*words, *more), None, True, tuple(writes), self.read(reads))
        self.listed.append(replace(step, protected=self.read(protected)))

    def histogram(self, system: System) -> None:
        """Prompts of the domain model, from a noised histogram of the private domains."""
        given, exact = self.experiment, self._exact()
        options = {"out": self.run / "domains.jsonl", "num_samples": given.num_samples, "labels": given.labels}
        train = self._train_path(system)
        self.tool(
            "histogram",
            "tool",
            ("domain",),
            "histogram",
            str(self.run / "domain"),
            *exact,
            **options,
            seed=given.seed,
            writes=[self.file("domains.jsonl", "prompts", system), self.shares("domains.histogram.json", system)],
            reads=[self.checkpoint("domain"), given.labels, train],
            protected=[train],
        )

    def _exact(self) -> list[str]:
        """The word that releases shares as they are, which is not private."""
        return ["--exact"] if self.experiment.exact_histogram or not self.experiment.is_private else []

    def evaluate(self, name: str, synthetic: str, after: str) -> None:
        """Compare a system's samples with the reference, if there is one."""
        given, data = self.experiment, self.experiment.section("data")
        if given.reference is None and given.adaptation is None:
            return
        reference = given.reference or self.run / "data" / "test.jsonl"
        private = (self.train_path or data.get("train_path")) if given.compare_with_private else None
        used, out = system_of(name), f"evaluation/{name}.json"
        writes = [self.file(out, "metrics", used)]
        if self.parser:
            writes.append(self.file(f"evaluation/{name}.parsed.jsonl", "data", used))
        self.tool(
            f"evaluate_{name}",
            "metrics",
            (after, *self.evaluate_after),
            "evaluate",
            synthetic=self.run / synthetic,
            reference=reference,
            out=self.run / out,
            featurizer=given.featurizer,
            private=private,
            seed=given.seed,
            parser=self.parser,
            save_parsed=self.run / "evaluation" / f"{name}.parsed.jsonl" if self.parser else None,
            keep_function=data.get("keep_function"),
            columns=self.columns,
            writes=writes,
            reads=[synthetic, reference, self.parser, private],
            protected=[private],
        )

    def fit_parser(self, name: str, layer: str, files: list[str] | None = None, after: tuple[str, ...] = ()) -> None:
        """Train a semantic parser, without privacy.

        Args:
            name: Its stage.
            layer: Stage of the experiment whose sections win over those of ``parser``.
            files: Training files in place of the experiment's.
            after: Stages that write them.
        """
        stages = self.experiment.stages
        file = self._file(MODEL_FILES["parser"])
        sections = merge(_sections_of(file), stages.get("parser", {}), stages.get(layer, {}))
        if files is not None:
            sections["data"] |= {"train_paths": files, "val_path": None, "test_path": None}
        config = {**self._training(file, sections, file["data"]["class_path"]), "not_private": True}
        reads = [*sections["data"].get("train_paths", ()), *map(sections["data"].get, ("val_path", "test_path"))]
        writes = [File(f"{name}/checkpoints/last.ckpt", "checkpoint")]
        private = [f"data/{part}.jsonl" for part in PRIVATE_PARTS]
        protected = [path for path in self.read(reads) if path in private]
        self._stage(name, "fit", after, config, writes=writes, reads=reads, protected=protected)

    def checkpoint(self, folder: str) -> str:
        """The checkpoint that a training of the run leaves."""
        return str(self.run / folder / "checkpoints" / "last.ckpt")

    def _sections(
        self, file: Settings, settings: str, system: System, more: Iterable[Mapping[str, Any]] = ()
    ) -> dict[str, Settings]:
        """The sections of a stage: of the model's file, of all, of the stage, of the system, derived, overridden."""
        experiment = self.experiment
        common = {name: getattr(experiment, name) for name in SECTIONS}
        own = (experiment.stages.get(settings, {}), system.changes, experiment.variants.get(system.name, {}))
        return merge(_sections_of(file), common, *own, *more, experiment.overrides)

    def _overlay(self, path: str) -> Settings:
        """An overlay, which must not touch what the experiment decides of the guarantee."""
        overlay = self._file(path)
        if "privacy" in overlay and overlay["privacy"] is None:
            raise UserError(f"{path} takes privacy away, which an overlay cannot: `epsilon: inf` trains without")
        for name in DERIVED.keys() & (overlay.get("privacy") or {}).keys():
            raise UserError(
                f"{path}: privacy.{name} follows from the field {DERIVED[name]} of the experiment: set that"
            )
        return overlay

    def _file(self, path: str) -> Settings:
        variables = {**os.environ, **self.experiment.environment}
        return fill_in(read_yaml(ROOT / path), variables, path)

    def _training(self, file: Settings, sections: Mapping[str, Settings], data: str) -> Settings:
        top = {"seed_everything": self.experiment.seed, "save_every": self.experiment.save_every}
        return {
            **{name: value for name, value in top.items() if value is not None},
            "trainer": sections["trainer"],
            "model": _model(file, sections),
            "data": {"class_path": data, "init_args": sections["data"]},
        }

    def _stage(
        self,
        name: str,
        kind: Kind,
        needs: tuple[str, ...],
        config: Settings,
        folder: str | None = None,
        writes: Iterable[File] = (),
        reads: Iterable[object] = (),
        protected: Iterable[object] = (),
    ) -> None:
        words = (kind, "--config", str(self.run / "configs" / f"{name}.yaml"))
        words += ("--run_dir", str(self.run / (folder or name)))
        config = {key: value for key, value in config.items() if value != {}}
        after, files = tuple(dict.fromkeys(needs)), (tuple(writes), self.read(reads), self.read(protected))
        self.listed.append(Step(name, kind, after, words, config, True, *files))


def _calibrate(sampling: Sampling) -> str:
    return sampling.name.replace("sample", "calibrate", 1)


def _sections_of(config: Mapping[str, Any]) -> dict[str, Settings]:
    """A configuration file in the sections of an experiment."""
    model = dict(config.get("model", {}).get("init_args", {}))
    sampling = model.pop("sampling", {})
    data = config.get("data", {}).get("init_args", {})
    given = {"trainer": config.get("trainer", {}), "model": model, "sampling": sampling, "data": data}
    return {**given, "privacy": config.get("privacy") or {}}


def _model(file: Settings, sections: Mapping[str, Settings]) -> Settings:
    init = dict(sections["model"])
    optimizer = init.get("optimizer")
    if optimizer and "class_path" not in optimizer:
        init["optimizer"] = {"class_path": "torch.optim.AdamW", "init_args": {"weight_decay": 0.0, **optimizer}}
    if sections["sampling"]:
        init["sampling"] = sections["sampling"]
    return {"class_path": file["model"]["class_path"], "init_args": init}


def _plain(number: float) -> float:
    return int(number) if float(number).is_integer() else number
