"""The user's files that steps read: each is there and can be read, and no public one is private.

:func:`check_sources` looks whether the experiment names what it needs, :func:`check_files` whether files are there, and
:func:`read_sources` what is in them.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from commands.data.reference import foreign, lossy, over_long, unslotted
from commands.privacy.histogram import read_labels
from commands.report.names import read_names
from commands.report.supported import read_supported
from commands.run.experiment.settings import Experiment, systems_of
from commands.run.steps.run_plan import RunPlan
from commands.run_folder.private_files import learnt_by_parser, learnt_from, of_experiment
from commands.run_folder.steps import InputFile
from commands.run_folder.systems import BASE_MODEL
from datamodules.guards.check import check
from datamodules.guards.overlap import Named, refuse_private
from datamodules.guards.redaction import Redaction
from datamodules.reading.attribute_codes import labels_of
from datamodules.reading.columns import Columns, ReferenceColumns, check_schema, check_unit, codes_of
from datamodules.reading.embedded import is_embedded
from datamodules.reading.example import Example
from datamodules.reading.examples import read_examples
from datamodules.reading.files import expand_path
from datamodules.reading.hub import is_on_hub
from datamodules.text_format import MAX_LENGTH
from doppel.errors import UserError
from doppel.grammar.slot_table import SHIPPED, slot_table
from doppel.lispress.api_table import read_api_names
from doppel.lispress.tree_names import TREES, read_tree_names
from doppel.privacy.card import origins_of
from doppel.tables.schema import plain
from doppel.text.unexpected import read_vocabulary

#: Requests of a reference that show gross faults of samples.
_FEW_COMPARED = 300
#: Labels that an error lists.
_SHOWN = 12
#: Turns of the reference whose quoted strings are looked at.
_TURNS = 2000
#: Field of a file that is no table of rows → what reads it.
_READERS: dict[str, Callable[[Path], object]] = {
    "attributes.schema": lambda path: check_schema(str(path)),
    "labels": read_labels,
    "model.slots": lambda path: slot_table(str(path)),
    "sampling.grammar": lambda path: read_tree_names(path) if path.suffix == TREES else read_api_names([path]),
    "words.vocabulary": read_vocabulary,
}


@dataclass(frozen=True)
class Read:
    """What reading the files of an experiment told.

    Attributes:
        notes: Sentences for the console of whoever starts the run, see :func:`datamodules.guards.check.check`.
        num_units: Path of a private file, as the experiment names it → its units.
    """

    notes: list[str]
    num_units: dict[str, int] = field(default_factory=dict)


def inputs_of(plan: RunPlan) -> list[InputFile]:
    """Return the user's files that steps which are to run read or name, each once, with all columns that they need."""
    found: dict[str, InputFile] = {}
    made = {str(plan.run / file.path) for step in plan.steps for file in step.writes}
    for step in plan.waiting:
        for file in step.inputs:
            if file.path in made:
                continue
            place, _, name = file.field.partition(".")
            if place == "data" and file.path != plan.experiment.data.get(name):
                file = file._replace(field=f"{file.field} of {step.name}")
            key = str(file._replace(field="", needs=()))
            seen = found.setdefault(key, file)
            found[key] = seen._replace(needs=tuple(dict.fromkeys([*seen.needs, *file.needs])))
    return sorted(found.values(), key=lambda file: not file.is_protected)  # notes on private ones first


def check_files(plan: RunPlan) -> None:
    """Refuse a run whose files are not on this machine, without opening one.

    Raises:
        UserError: One is not, or a variable in its path is not set.
    """
    for row in inputs_of(plan):
        path = str(row.path)
        if not (is_embedded(path) or is_on_hub(path) or os.path.exists(expand_path(path))):
            raise UserError(f"{row.field} is {path}, which does not exist: correct the path")


def check_sources(experiment: Experiment) -> None:
    """Refuse an experiment whose numbers would mean nothing, because a file is not named or stands for another.

    Raises:
        UserError: The private file is not named, or one alone of it and the reference is embedded; or a parser that
            chooses or counts is not there.
    """
    learners = [system for system in systems_of(experiment) if system.learns]
    if not learners:
        return
    read_supported(experiment.supported)
    read_names(experiment.names)
    counts = None if experiment.resampling is None else experiment.resampling.of
    chosen = {system.learns for system in learners if experiment.candidates_of(system) > 1}
    if "parse" in chosen or experiment.write_parses or counts == "utterances":
        _check_public_parser(experiment)
    if experiment.attributes is not None:
        sources = check_schema(experiment.attributes.schema).schema.sources
        if sources and experiment.write_parses and any(system.has_attributes for system in learners):
            raise UserError(
                f"write_parses makes a file of utterances and trees, which has no column {sources[0]!r} of "
                f"{experiment.attributes.schema}: let its attributes be made of words, calls, function and label alone"
            )
    _check_base(experiment)
    train = experiment.data.get("train_path") if experiment.adaptation is None else experiment.adaptation.train
    if train is None:
        raise UserError(
            f"{experiment.name} names no data.train_path: set it in its file, or give --set data.train_path=FILE"
        )
    reference, name = experiment.compared, "reference" if experiment.reference else "compared_with"
    if reference is not None and is_embedded(train) != is_embedded(reference):
        raise UserError(
            f"the private file is {train}, but {name} is {reference}: one of them is the embedded toy grammar, with "
            "which nothing else can be compared; set both"
        )


def read_sources(plan: RunPlan) -> Read:
    """Read every file as the steps will that read it.

    Raises:
        UserError: One cannot be read, and the message names the line; or one that is public, or that a public parser
            learnt from, says what a private one does (:func:`datamodules.guards.overlap.refuse_private`).
    """
    experiment = plan.experiment
    model, rows, notes, num_units = experiment.model, inputs_of(plan), list[str](), dict[str, int]()
    base = model.get("base_model") or BASE_MODEL
    is_over_long = over_long(base, model.get("max_length", MAX_LENGTH), model.get("task_prefix", True))
    labels = next((read_labels(Path(str(row.path))) for row in rows if row.field == "labels"), None)
    if plan.is_anew and any("label" in row.needs for row in rows):  # a run that has begun goes on as it is
        for label in labels or ():
            if is_over_long(Example(label, None, "")):
                raise UserError(
                    f"the label {label[:40]!r} … leaves no room for text in model.max_length: shorten it, and in rows",
                    about=experiment.labels,
                )
    for row in rows:
        if row.kind == "other" and row.field in _READERS:
            _READERS[row.field](Path(expand_path(str(row.path))))
        if not row.is_read or row.kind == "other":
            continue
        is_train = row.kind == "train"
        if is_train:
            check_unit(row.unit, row.columns or Columns())
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
        if plan.is_anew and not checked.has_labels:
            raise UserError(
                f"no row of {row.path} has a label of this list, so nothing would be learnt of any of them: give the "
                "labels as the rows have them, one a line; of several columns one is such as "
                '"Category: Food | Stars: 5"',
                about=experiment.labels,
            )
        notes += checked.notes
        num_units |= {str(row.path): checked.num_units} if is_train else {}
    if plan.is_anew:
        _refuse_words_of_nothing(experiment, labels or (), rows)
    public: list[Named] = [(row.field, row.path, row.columns) for row in rows if row.kind == "public"]
    if experiment.is_private:
        public += learnt_from("public_parser", experiment.public_parser)
        learnt = learnt_by_parser(experiment.as_dict())
        if learnt:
            notes.append(
                f"parser={experiment.parser} learnt from {', '.join(learnt)} without privacy: no ε covers what it "
                "reads (parsed_…, ground_truth_…, and trees of an adaptation), and the card says so; a public parser "
                "would be covered"
            )
        elif experiment.adaptation is not None and experiment.parser is None:
            notes.append(
                "parser is not named, so full-parser learns from private trees without privacy, and annotates in the "
                "place of people: no ε covers what it reads (parsed_…, ground_truth_…) nor the parsers that it teaches "
                "(parser_metrics.json), and the card says so"
            )
        elif plan.is_anew:  # of a file that says the same in another form
            public += learnt_from("parser", experiment.parser)
        for row in rows:
            public += learnt_from("init_weights", row.path) if row.field == "model.init_weights" else ()
    refuse_private(public, of_experiment(experiment.as_dict()))  # most of them are not opened again
    return Read(list(dict.fromkeys([*notes, *_on_settings(experiment)])), num_units)


def _refuse_words_of_nothing(experiment: Experiment, labels: Sequence[str], rows: Sequence[InputFile]) -> None:
    """Refuse ``label_words`` of a value that neither the public labels nor the public schema have."""
    schemas = filter(None, (codes_of(row.columns) for row in rows if row.columns))
    known = {value for values in labels_of(labels).values() for value in values}
    known |= {value for codes in schemas for column in codes.schema.columns for value in column.values}
    unknown = [value for value in experiment.label_words if plain(value) not in known]
    if unknown and known:
        near = difflib.get_close_matches(plain(unknown[0]), known, n=1)
        meant = f" (did you mean {near[0]!r}?)" if near else ""
        raise UserError(
            f"label_words describes {unknown[0]!r}, which no label is{meant}: there are "
            f"{', '.join(sorted(known)[:_SHOWN])}{', …' if len(known) > _SHOWN else ''}",
            about=experiment.labels or "",
        )


def _on_settings(experiment: Experiment) -> list[str]:
    """Notes on what the settings make of the files; refuses topics of fewer texts than there are to be topics."""
    model, notes = experiment.model, list[str]()
    has_trees = any(system.learns == "parse" for system in systems_of(experiment))
    seeds = {"privacy.seed": experiment.privacy.get("seed"), "data.sampling_seed": experiment.data.get("sampling_seed")}
    notes += [
        f"{name} is {seed}, and whoever reads it undoes the noise or knows who was drawn: the run will be NOT PRIVATE, "
        "for all its ε; leave it out (seed makes samples the same again, never the noise)"
        for name, seed in seeds.items()
        if seed is not None and experiment.is_private
    ]
    learns = any(system.learns for system in systems_of(experiment))
    if learns and experiment.adaptation is None and experiment.compared is None:
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
        columns = ReferenceColumns.from_config(experiment.data)
        uses = {"topics": experiment.topic_settings.encoder, "evolution": experiment.evolving.encoder}
        encoders = [f"{n}.encoder" for n, encoder in uses.items() if n in experiment.systems and encoder == "minilm"]
        base = model.get("base_model") or BASE_MODEL
        notes += filter(None, [foreign(experiment.reference, columns, base, encoders)])
        notes += filter(None, [lossy(experiment.reference, columns, base)])
    if experiment.lessons and (num := len(public_turns(experiment, str(experiment.reference)))) < 2 * _FEW_COMPARED:
        notes.append(
            f"half of the {num:,} requests of the reference teach the base, so samples are compared with few: give "
            f"more, or --set {' '.join(f'epochs.{name}=0' for name in dict.fromkeys(experiment.lessons.values()))}, "
            "which teaches nothing and compares with all"
        )
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
