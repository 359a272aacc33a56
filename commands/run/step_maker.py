"""Makes the steps that the recipes list."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, cast

from commands.privacy.evolution_settings import GRAMMAR
from commands.run.settings import Attributes, Calibration, Topics
from commands.run.step_base import StepBase
from commands.runs.steps import File, Role, Step
from commands.runs.system import System, candidates_of, pool_of
from commands.runs.yaml_files import Settings, merge
from datamodules.redaction import Redaction
from doppel.errors import UserError

Shares = Calibration | Topics
#: What of the sections ``data`` and ``privacy`` concerns votes, and the noise of the labels' shares unless it is given.
_ROWS = ("train_path", "unit", "columns", "keep_function", "keep_share", "limit_train_units", "redact")
_BUDGET = ("delta", "accountant", "ledger_path", "seed")
_OF_SIZES = ("histogram_noise_multiplier", "histogram_share")
_SIZES = 10.0
#: Where an evolution keeps the rows of attributes that its run has measured.
_ROWS_FILE = "rows.csv"


class StepMaker(StepBase):
    """Makes the steps of a run's systems; arguments as of :class:`~commands.run.step_base.StepBase`.

    Formal guarantees:
        Shares of private turns are released by the steps of a system's first draw alone. Those of a later draw, and of
        a system that samples from another's models, read what was released (``--shares``), and no private file.

    Attributes:
        only: Label or topic that all samples have; None: as the shares say.
    """

    only: str | None = None

    @property
    def attributes(self) -> Attributes:
        """Which attributes there are."""
        assert self.experiment.attributes is not None, "an experiment without is refused"
        return self.experiment.attributes

    @property
    def topics(self) -> Topics:
        """How utterances without labels get some."""
        return self.experiment.topics or Topics()

    def calibration(self, system: System) -> Calibration | None:
        """How the experiment draws samples of a system from an over-sample; None: as they are sampled."""
        wanted = self.experiment.calibration
        return None if wanted is None or (wanted.draws_trees and not system.has_trees) else wanted

    def fit(
        self, system: System, stage: str, shares: Shares | Attributes | None = None, changes: Settings | None = None
    ) -> Step:
        """Train a language model on the private turns.

        Args:
            system: Whose settings and budget it has.
            stage: Which of its models.
            shares: What its samples, or their prompts, are drawn by, which its budget pays for.
            changes: Sections of an experiment that the system sets.
        """
        experiment, folder = self.experiment, system.model(stage)
        epochs = {name: _plain(experiment.epochs_of(name)) for name in system.stages}
        derived: Settings = {"trainer": {"max_epochs": epochs[stage]}, "data": {}, "privacy": {}}
        if experiment.is_private:
            budget = {"target_epsilon": experiment.epsilon, "epochs": list(epochs.values()), "scope": system.scope}
            derived["privacy"] = budget
            if experiment.exact_histogram:
                derived["privacy"] = {**budget, "histogram_noise_multiplier": None}
            elif isinstance(shares, Attributes):
                derived["privacy"] = {**budget, "histogram_share": shares.share}
            elif shares is not None:
                derived["privacy"] = {**budget, "histogram_noise_multiplier": shares.noise_multiplier}
        else:
            derived["data"] = {"sampling": "shuffle"}
        if experiment.redact is not None:
            derived["data"]["redact"] = experiment.redact.as_dict()
        config = self.configs.training(system, stage, changes or {}, derived, experiment.is_private)
        data = config["data"]["init_args"]
        if self.train_path is not None:  # wins over --set, whose file it was made of
            data["train_path"] = self.train_path
            attributes = (data.pop("columns", None) or {}).get("attributes")  # it has the usual ones
            if attributes is not None:
                data["columns"] = {"attributes": attributes}
        schema = (data.get("columns") or {}).get("attributes")
        start = config["model"]["init_args"].get("init_weights")
        paths = [data.get("train_path"), data.get("val_path")]
        ranked, listed = _redaction(data)
        return self._lightning(
            folder,
            "fit",
            config,
            writes=[self._file(f"{folder}/checkpoints/last.ckpt", "checkpoint", system)],
            reads=[*paths, start and f"{start}/checkpoints/last.ckpt", *_grammar(config), schema, *ranked, listed],
            protected=[*(paths[:1] if data.get("val_is_public") else paths), listed],
            mechanisms=self._paid_by(system, folder),
        )

    def trees(
        self, system: System, stage: str, shares: Shares | None = None, changes: Settings | None = None
    ) -> list[Step]:
        """Trees of a model, which are the prompts of another; drawn by their shares where an experiment asks for it."""
        writes = str(system.prompts)
        is_drawn = shares is not None and shares.draws_trees
        pool = self._file(pool_of(writes), "pool", system) if is_drawn else self._file(writes, "prompts", system)
        sampled = self._sample(system, stage, pool, shares, changes)
        return [sampled, self._calibrate(system, stage, writes, shares)] if is_drawn and shares else [sampled]

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
        writes = system.synthetic
        if keeps_best and self.experiment.candidates > 1:
            candidates = self._file(candidates_of(writes), "candidates", system)
            drawn = self._sample(system, stage, candidates, shares, changes, self.experiment.candidates)
            return [drawn, self._keep_best(system, stage)]
        if shares is not None and not shares.draws_trees:
            pool = self._file(pool_of(writes), "pool", system)
            drawn = self._sample(system, stage, pool, shares, changes)
            return [drawn, self._calibrate(system, stage, writes, shares)]
        return [self._sample(system, stage, self._file(writes, system.role, system), shares, changes)]

    def histogram(self, system: System, stage: str) -> Step:
        """Prompts of a model of labels, from a noised histogram of the private ones."""
        experiment, prompts = self.experiment, str(system.prompts)
        shares = self._shares("labels.histogram.json", system)
        releases = system.draw == 1
        train = self._private_file(system) if releases else None
        options = {"out": self.run / prompts, "num_samples": experiment.num_samples, "labels": experiment.labels}
        if not releases:
            options |= {"shares": self.run / shares.path, "only": self.only}
        return self.tool(
            "histogram" if releases else f"histogram_{system.part(stage)}",
            "tool",
            ["histogram", self.run / system.model(stage), *self._exact()],
            {**options, "seed": experiment.seed},
            writes=[self._file(prompts, "prompts", system), *([shares] if releases else [])],
            reads=[
                self.checkpoint(system.model(stage)),
                *([] if releases else [shares.path]),
                experiment.labels,
                train,
            ],
            protected=[train],
            mechanisms=self._paid_by(system, "histogram") if releases and not self._exact() else (),
        )

    def marginals(self, system: System, stage: str) -> Step:
        """Prompts of a model of attributes, from noised marginals of the private table of them."""
        experiment, prompts = self.experiment, str(system.prompts)
        released = self._shares(f"{system.name}.releases.jsonl", system)
        releases = system.draw == 1
        train = self._private_file(system) if releases else None
        again = {} if releases else {"releases": self.run / released.path, "only": self.only}
        return self.tool(
            "marginals" if releases else f"marginals_{system.part(stage)}",
            "tool",
            ["attributes", self.run / system.model(stage), *self._exact()],
            {"out": self.run / prompts, "num_samples": experiment.num_samples, **again, "seed": experiment.seed},
            writes=[self._file(prompts, "prompts", system), *([released] if releases else [])],
            reads=[
                self.checkpoint(system.model(stage)),
                *([] if releases else [released.path]),
                self.attributes.schema,
                train,
            ],
            protected=[train],
            mechanisms=self._paid_by(system, "marginals") if releases and not self._exact() else (),
        )

    def rows(self, system: System) -> list[Step]:
        """Rows of attributes for the first texts of an evolution, which its budget pays for; none unless asked for."""
        experiment = self.experiment
        if not experiment.evolving.measures_rows:
            return []
        data, privacy, schema = self._voters(system), self._budget(system), self.attributes.schema
        if privacy is not None:
            privacy |= {"histogram_share": self.attributes.share}
        ranked, listed = _redaction(data)
        out = f"{system.name}/{_ROWS_FILE}"
        released = (
            [(f"{out}.releases.jsonl", "metrics"), (f"{out}.card.json", "metrics")] if privacy is not None else []
        )
        files = [(out, "prompts" if privacy is not None else "private"), *released]
        options = {
            "schema": schema,
            "num_rows": experiment.num_samples,
            "data": json.dumps(data),
            "privacy": None if privacy is None else json.dumps(privacy),
            "seed": experiment.seed,
        }
        return [
            self.tool(
                f"rows_{system.name}",
                "tool",
                ["rows", self.run / out],
                options,
                writes=[self._file(path, cast("Role", role), system) for path, role in files],
                reads=[data.get("train_path"), schema, *ranked, listed],
                protected=[data.get("train_path"), listed],
                mechanisms=self._paid_by(system, "marginals"),
            )
        ]

    def evolve(self, system: System) -> Step:
        """Samples that a public model writes and private votes choose; no model is trained.

        Raises:
            UserError: A later draw is asked for: it would need votes of its own.
        """
        experiment, settings = self.experiment, self.experiment.evolving
        if system.draw > 1:
            raise UserError("evolution has no model to sample from: more samples need more votes, which spend on top")
        data, privacy = self._voters(system), self._budget(system)
        if privacy is not None and settings.per_label:
            given = self._section(system, "privacy")
            sizes = {name: given[name] for name in _OF_SIZES if given.get(name) is not None}
            privacy |= sizes or {"histogram_noise_multiplier": _SIZES}
        folder, train = system.name, data.get("train_path")
        ranked, listed = _redaction(data)
        rows = f"{folder}/{_ROWS_FILE}"
        if settings.measures_rows:
            settings = dataclasses.replace(settings, rows=str(self.run / rows))
        is_folder = settings.generator != GRAMMAR and not settings.is_server
        labels = experiment.labels if settings.per_label else None
        options = {
            "out": self.run / system.synthetic,
            "num_samples": experiment.num_samples,
            "data": json.dumps(data),
            "settings": json.dumps(dataclasses.asdict(settings)),
            "privacy": None if privacy is None else json.dumps(privacy),
            "labels": labels,
            "reference": experiment.reference,
            "seed": experiment.seed,
        }
        return self.tool(
            system.name,
            "metrics",
            ["evolve", self.run / folder],
            options,
            writes=[
                self._file(system.synthetic, system.role, system),
                self._file(f"{system.synthetic}.evolution.json", "metrics", system),
                self._file(f"{folder}/answers.jsonl", "data", system),
            ],
            reads=[
                train,
                labels,
                settings.rows,
                settings.examples,
                experiment.reference,
                settings.generator if is_folder else None,
                *ranked,
                listed,
            ],
            protected=[train, listed],
            mechanisms=self._paid_by(system, "votes", *(["histogram"] if settings.per_label else [])),
        )

    def _section(self, system: System, name: str) -> Settings:
        """A section of the experiment as a system that trains nothing has it."""
        experiment = self.experiment
        variant = experiment.variants.get(system.name, {})
        return merge(getattr(experiment, name), variant.get(name, {}), experiment.overrides.get(name, {}))

    def _voters(self, system: System) -> Settings:
        """Whose texts vote: arguments of the data module."""
        data = self._section(system, "data")
        if self.experiment.redact is not None:
            data = {**data, "redact": self.experiment.redact.as_dict()}
        data = {name: data[name] for name in _ROWS if data.get(name) is not None}
        return data if self.train_path is None else {**data, "train_path": self.train_path, "columns": None}

    def _budget(self, system: System) -> Settings | None:
        """What everything in the scope of the votes may cost; None without privacy."""
        if not self.experiment.is_private:
            return None
        given = {name: value for name, value in self._section(system, "privacy").items() if name in _BUDGET}
        return {**given, "target_epsilon": self.experiment.epsilon, "scope": system.scope}

    def evaluate(self, system: System) -> list[Step]:
        """Compare a system's samples with the reference, if there are both."""
        experiment, data = self.experiment, self.experiment.section("data")
        if not system.learns or (experiment.reference is None and experiment.adaptation is None):
            return []
        reference = experiment.reference or self.run / "data" / "test.jsonl"
        private = (self.train_path or data.get("train_path")) if experiment.compare_with_private else None
        out, parsed = f"evaluation/{system.name}.json", f"evaluation/{system.name}.parsed.jsonl"
        options = {
            "synthetic": self.run / system.synthetic,
            "reference": reference,
            "out": self.run / out,
            "featurizer": experiment.featurizer,
            "private": private,
            "seed": experiment.seed,
            "parser": self.parser,
            "save_parsed": self.run / parsed if self.parser else None,
            "keep_function": data.get("keep_function"),
            "next_token_epochs": experiment.next_token_epochs or None,
            "columns": self._columns_with_attributes(),
        }
        writes = [self._file(out, "metrics", system)]
        writes += [self._file(parsed, "data", system)] if self.parser else []
        schema = None if experiment.attributes is None else experiment.attributes.schema
        reads = [system.synthetic, reference, self.parser, private, schema]
        name = f"evaluate_{system.name}"
        return [self.tool(name, "metrics", ["evaluate"], options, writes=writes, reads=reads, protected=[private])]

    def _columns_with_attributes(self) -> str | None:
        """What columns are called, as JSON, with the attributes that a comparison reads."""
        if self.experiment.attributes is None:
            return self.columns
        columns = {} if self.columns is None else json.loads(self.columns)
        return json.dumps({**columns, "attributes": self.experiment.attributes.schema})

    def _sample(
        self,
        system: System,
        stage: str,
        writes: File,
        shares: Shares | None,
        changes: Settings | None,
        candidates: int = 1,
    ) -> Step:
        """A pass of ``predict`` over a trained model."""
        data: Settings = {"num_samples": self.experiment.num_samples * candidates}
        if shares is not None and (writes.role == "pool" or not shares.draws_trees):  # and what leads to these
            data["num_samples"] *= shares.oversample
        if system.prompts is not None and writes.path not in (system.prompts, pool_of(system.prompts)):
            data |= self.prompts(system.prompts)
        config = self.configs.sampling(system, stage, changes or {}, data)
        source, checkpoint = system.source(stage), self.checkpoint(system.model(stage))
        overlay = self.configs.writing("sample", str(self.run / writes.path), source)
        return self._lightning(
            f"sample_{system.part(stage)}",
            "predict",
            merge(overlay, config, {"ckpt_path": checkpoint}),
            system.folder(stage),
            writes=[writes, self._file(f"{writes.path}.metrics.json", "metrics", system)],
            reads=[checkpoint, data.get("prompts_path"), *_grammar(config)],
        )

    def prompts(self, path: str) -> Settings:
        """Arguments of a sampling that name its trees or labels.

        Args:
            path: File of the run in which the step before leaves them.
        """
        return {"prompts_path": str(self.run / path)}

    def _keep_best(self, system: System, stage: str) -> Step:
        """Keep one of the candidates of each tree, or of each label."""
        experiment, candidates = self.experiment, candidates_of(system.synthetic)
        parser = experiment.public_parser if system.has_trees else None
        reference = experiment.reference if experiment.fluent and system.has_trees else None
        words = json.dumps(experiment.label_words) if experiment.label_words and not system.has_trees else None
        prompts = self.prompts(str(system.prompts))["prompts_path"]
        schema = self.attributes.schema if system.has_attributes else None
        of_codes = None if schema is None else json.dumps({"attributes": schema})
        files = {"candidates": self.run / candidates, "prompts": prompts, "out": self.run / system.synthetic}
        return self.tool(
            f"choose_{system.part(stage)}",
            "metrics",
            ["keep-best"],
            {
                **files,
                "parser": parser,
                "reference": reference,
                "label_words": words,
                "seed": experiment.seed,
                "columns": self.columns if reference else of_codes,
            },
            writes=[
                self._file(system.synthetic, system.role, system),
                self._file(f"{system.synthetic}.kept.json", "metrics", system),
            ],
            reads=[candidates, prompts, parser, reference, schema],
        )

    def _calibrate(self, system: System, stage: str, writes: str, shares: Shares) -> Step:
        """Draw from an over-sample; a system that samples from another's models reads what that released."""
        experiment, folder, options = self.experiment, system.model(stage), Settings()
        if isinstance(shares, Topics):
            texts = shares.public_texts(experiment.reference)
            options = {"num_topics": shares.num_topics, "texts": texts, "encoder": shares.encoder}
        elif shares.of == "votes":
            options = {"num_clusters": shares.clusters, "encoder": shares.encoder}
        elif shares.of == "utterances":
            options = {"parser": experiment.public_parser}
        role: Role = system.role if writes == system.synthetic else "prompts"
        made = [self._file(writes, role, system), self._file(f"{writes}.calibration.json", "metrics", system)]
        released = [self._shares(f"{folder}/marginals.json", system)]
        if isinstance(shares, Topics) or shares.of == "votes":
            released.append(self._file(f"{folder}/codebook.jsonl", "data", system))
        releases = system.models_of is None and system.draw == 1
        train = self._private_file(system) if releases else None
        files = {"pool": self.run / pool_of(writes), "out": self.run / writes}
        again = {"shares": self.run / folder / "marginals.json", "only": self.only} if system.draw > 1 else {}
        return self.tool(
            f"calibrate_{system.part(stage)}",
            "metrics" if options else "tool",  # a parser or an encoder runs
            ["calibrate", self.run / folder, *self._exact()],
            {**files, "num_samples": experiment.num_samples, **options, **again, "seed": experiment.seed},
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
            mechanisms=self._paid_by(system, "histogram") if releases and not self._exact() else (),
        )

    def _paid_by(self, system: System, *stages: str) -> list[str]:
        """The mechanisms of a step that reads the private file, by what the ledger calls them; none without privacy."""
        return [f"{system.scope}/{stage}" for stage in stages] if self.experiment.is_private else []

    def _shares(self, path: str, system: System) -> File:
        """Released shares: with their noise numbers like any others, without it private."""
        return self._file(path, "private" if self._exact() else "metrics", system)

    def _exact(self) -> list[str]:
        """The word that releases shares as they are, which is not private."""
        return ["--exact"] if self.experiment.exact_histogram or not self.experiment.is_private else []

    def _private_file(self, system: System) -> str | None:
        """What a system trains on."""
        variant = self.experiment.variants.get(system.name, {}).get("data", {})
        merged: dict[str, Any] = merge(self.experiment.data, variant, self.experiment.overrides.get("data", {}))
        return self.train_path or merged.get("train_path")


def _grammar(config: Settings) -> list[str]:
    """Files of whose names a model may write."""
    grammar = config["model"]["init_args"].get("sampling", {}).get("grammar") or []
    return [grammar] if isinstance(grammar, str) else list(grammar)


def _redaction(data: Settings) -> tuple[list[str], str | None]:
    """Public files that a ranker of words learns of, and the list of hidden words, which may name people."""
    redaction = Redaction.from_config(data.get("redact"))
    return ([], None) if redaction is None else ([str(path) for _, path, _ in redaction.public_files], redaction.words)


def _plain(number: float) -> float:
    return int(number) if float(number).is_integer() else number
