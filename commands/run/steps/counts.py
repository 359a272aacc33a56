"""Steps that count private turns, or draw by what was counted: histograms, marginals, shares, votes.

Formal guarantees:
    Shares of private turns are released by the steps of a system's first draw alone. Those of a later draw, and of a
    system that samples from another's models, read what was released (``--shares``), and no private file.
"""

from __future__ import annotations

import dataclasses

from commands.privacy.release_settings import Attributes, Topics
from commands.run.steps.context import StepContext, file_of
from commands.run.steps.trainings import Shares, files_of, unit_named
from commands.run_folder.steps import SHARES, File, InputFile, Role, Step
from commands.run_folder.systems import System
from doppel.settings.yaml_files import Settings

#: What of the sections ``data`` and ``privacy`` concerns votes, and the noise of the labels' shares unless it is given.
_ROWS = ("train_path", "unit", "unit_names", "columns", "keep_function", "keep_share", "limit_train_units", "redact")
_BUDGET = ("delta", "accountant", "ledger_path", "total_epsilon", "seed")
_OF_SIZES = ("histogram_noise_multiplier", "histogram_share")
_SIZES = 10.0
#: Words that nobody expected, of each system.
WORDS = "words.json"
#: Where an evolution keeps the rows of attributes that its run has measured.
_ROWS_FILE = "rows.csv"


def label_prompts(context: StepContext, system: System, training: Step, attributes: Attributes | None = None) -> Step:
    """Prompts of a model: labels, by a noised histogram of the private ones, or attributes, by noised marginals."""
    stage = system.stages[0]
    experiment, prompts, model = context.experiment, context.at("labels.jsonl"), f"{system.scope}/{stage}"
    if attributes is None:
        name, command, option, file = "histogram", "histogram", "shares", "histogram.json"
        public = InputFile("labels", experiment.labels)
    else:
        name, command, option, file = "marginals", "attributes", "releases", "releases.jsonl"
        public = InputFile("attributes.schema", attributes.schema)
    released = _shares(context, f"{system.name}/labels.{file}", system)
    releases = context.draw == 1
    train = training.train_file if releases else None
    again = {} if releases else {option: context.folder / released.path, "only": context.wanted.only}
    options = {"out": context.folder / prompts, "num_samples": experiment.num_samples, "seed": experiment.seed, **again}
    options |= {"labels": experiment.labels} if attributes is None else {}
    return context.step(
        name,
        command,
        {"stage_dir": context.folder / model, **_exact(context), **options},
        writes=[file_of(system, prompts, "prompts"), *([released] if releases else [])],
        reads=[context.checkpoint(model), *([] if releases else [released.path]), public, train],
        mechanisms=context.paid_by(system, name) if releases and not context.is_exact else (),
    )


def resample(context: StepContext, system: System, stage: str, shares: Shares, training: Step | None) -> Step:
    """Draw from an over-sample; a system that samples from another's models reads what that released."""
    experiment, folder, options, public = context.experiment, f"{system.scope}/{stage}", Settings(), None
    if isinstance(shares, Topics):
        texts = shares.public_texts(experiment.reference)
        public = context.public("topics.texts", texts) if texts != experiment.reference else context.reference
        options = {"num_topics": shares.num_topics, "texts": texts, "encoder": shares.encoder}
    elif shares.of == "votes":
        options = {"num_clusters": shares.clusters, "encoder": shares.encoder}
    elif shares.of == "utterances":
        options = {"parser": experiment.public_parser}
    role: Role = "prompts" if shares.draws_trees else context.role
    pool, writes = context.at("pool.jsonl"), context.at("trees.jsonl" if shares.draws_trees else "samples.jsonl")
    made = [file_of(system, writes, role), file_of(system, f"{writes}.resampling.json", "metrics")]
    released = [_shares(context, f"{folder}/{SHARES}", system)]
    if isinstance(shares, Topics) or shares.of == "votes":
        released.append(file_of(system, f"{folder}/codebook.jsonl", "data"))
    train = training.train_file if training is not None and context.draw == 1 else None
    releases = train is not None
    files = {"pool": context.folder / pool, "out": context.folder / writes}
    told = {"shares": context.folder / folder / SHARES, "only": context.wanted.only}
    again = told if context.draw > 1 else {}
    options |= {"num_samples": experiment.num_samples, **again, "seed": experiment.seed}
    return context.step(
        "resample",
        "resample",
        {"stage_dir": context.folder / folder, **_exact(context), **files, **options},
        writes=[*made, *(released if releases else [])],
        reads=[
            files["pool"],
            *([] if releases else [file.path for file in released]),
            context.checkpoint(folder),
            options.get("parser"),
            public,
            train,
        ],
        mechanisms=context.paid_by(system, "histogram") if releases and not context.is_exact else (),
    )


def rows(context: StepContext, system: System, attributes: Attributes) -> Step:
    """Rows of attributes for the first texts of an evolution, which its budget pays for."""
    experiment, data, privacy = context.experiment, _voters(context), _budget(context, system)
    if privacy is not None:
        privacy |= {"histogram_share": attributes.share}
    train, _, _, *others = files_of(data)
    out = context.at(_ROWS_FILE)
    released = [f"{out}.releases.jsonl", f"{out}.card.json"] if privacy is not None else []
    options = {"schema": attributes.schema, "num_rows": experiment.num_samples, "data": data, "privacy": privacy}
    return context.step(
        "rows",
        "rows",
        {"out": context.folder / out, **options, "seed": experiment.seed},
        writes=[
            file_of(system, out, "private" if privacy is None else "prompts"),
            *(file_of(system, path, "metrics") for path in released),
        ],
        reads=[train, InputFile("attributes.schema", attributes.schema), *others],
        mechanisms=context.paid_by(system, "marginals"),
    )


def evolve(context: StepContext, system: System) -> Step:
    """Samples that a public model writes and private votes choose; no model is trained."""
    experiment, settings = context.experiment, context.experiment.evolving
    data, privacy = _voters(context), _budget(context, system)
    if privacy is not None and settings.per_label:
        given = experiment.privacy
        sizes = {name: given[name] for name in _OF_SIZES if given.get(name) is not None}
        privacy |= sizes or {"histogram_noise_multiplier": _SIZES}
    train, _, _, *others = files_of(data, ("label",) if settings.per_label else ())
    out = context.at("samples.jsonl")
    if settings.measures_rows:
        settings = dataclasses.replace(settings, rows=str(context.folder / context.at(_ROWS_FILE)))
    labels = experiment.labels if settings.per_label else None
    return context.step(
        "evolve",
        "evolve",
        {
            "folder": context.folder / context.place,
            "out": context.folder / out,
            "num_samples": experiment.num_samples,
            "data": data,
            "settings": dataclasses.asdict(settings),
            "privacy": privacy,
            "labels": labels,
            "reference": experiment.reference,
            "seed": experiment.seed,
        },
        writes=[
            file_of(system, out, context.role),
            file_of(system, f"{out}.evolution.json", "metrics"),
            file_of(system, context.at("answers.jsonl"), "data"),
        ],
        reads=[
            train,
            InputFile("labels", labels),
            InputFile("evolution.rows", settings.rows),
            context.public("evolution.examples", settings.examples),
            context.reference,
            InputFile("evolution.generator", settings.generator_folder),
            *others,
        ],
        mechanisms=context.paid_by(system, "votes", *(["histogram"] if settings.per_label else [])),
    )


def words(context: StepContext, system: System, training: Step | None) -> list[Step]:
    """Return the step that releases words which the reference hardly says; of each budget once."""
    experiment, counted = context.experiment, context.experiment.counted_words
    if counted is None or not system.learns or system.models_of is not None:
        return []
    data, out = _voters(context), context.at(WORDS)
    folder = context.at(system.stages[0]) if system.stages else context.place
    inputs = files_of(data) if training is None else training.inputs
    private = [file for file in inputs if file.kind == "train" or file.field.startswith("redact.")]
    options: Settings = {"reference": experiment.reference, "out": context.folder / out, "per_unit": counted.per_unit}
    options |= {"vocabulary": counted.vocabulary}
    options |= {} if system.stages else {"data": data, "privacy": _budget(context, system)}
    step = context.step(
        "words",
        "words",
        {"stage_dir": context.folder / folder, **options},
        writes=[file_of(system, out, "metrics")],
        reads=[
            context.checkpoint(folder) if system.stages else context.at("samples.jsonl"),
            *private[:1],
            context.reference,
            InputFile("words.vocabulary", counted.vocabulary),
            *private[1:],
        ],
        mechanisms=context.paid_by(system, "words"),
    )
    return [step]


def keep_saying(context: StepContext, system: System) -> Step:
    """Return the step that keeps the samples of a later draw which say some words."""
    samples, out = context.at("samples.jsonl"), context.at("saying.jsonl")
    config = {"samples": context.folder / samples, "say": list(context.wanted.words), "num": context.wanted.num}
    written = [file_of(system, out, "examples")]
    return context.step(
        "saying", "keep-saying", {**config, "out": context.folder / out}, writes=written, reads=[samples]
    )


def _voters(context: StepContext) -> Settings:
    """Whose texts vote: arguments of the data module."""
    redact = {} if context.experiment.redact is None else {"redact": context.experiment.redact.as_dict()}
    data = {**context.experiment.data, **redact}
    data = {name: data[name] for name in _ROWS if data.get(name) is not None}
    if context.train_path is None:
        return data
    return {**data, **unit_named(data), "train_path": context.train_path, "columns": None}


def _budget(context: StepContext, system: System) -> Settings | None:
    """What everything in the scope of the votes may cost; None without privacy."""
    if not context.experiment.is_private:
        return None
    given = {name: value for name, value in context.experiment.privacy.items() if name in _BUDGET}
    return {**given, **context.budget(system)}


def _shares(context: StepContext, path: str, system: System) -> File:
    """Released shares: with their noise numbers like any others, without it private."""
    return file_of(system, path, "private" if context.is_exact else "metrics")


def _exact(context: StepContext) -> Settings:
    """What releases shares as they are, which is not private."""
    return {"exact": True} if context.is_exact else {}
