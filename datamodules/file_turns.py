"""Rows and dialogues of a file as turns, with their places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datamodules.columns import Columns, control_code, told
from datamodules.hub import is_on_hub
from datamodules.records import Record, kind, read_records
from datamodules.turn import Field, Turn, Unit, unit_name
from doppel.errors import DataError
from doppel.lispress import first_error
from doppel.thingtalk import ThingTalkError, is_program, to_lispress

#: What to do about a turn without a field that the model needs.
_WAYS_OUT = {
    "utterance": "add one, or drop the line",
    "parse": "add the tree, drop the line, let a semantic parser write the trees, or do without: systems=[domain] "
    "learns from labels, systems=[one_stage] from utterances alone",
    "domain": "add one, drop the line, or train a model without labels (systems=[one_stage])",
}
#: Which of the columns holds a field.
_COLUMN_OF = {"utterance": "text", "parse": "parse", "domain": "label"}


@dataclass(frozen=True)
class Placed:
    """A turn and where it stands, such as ``reviews.csv:7``; None for a row without text, which is no turn."""

    where: str
    turn: Turn | None


def records(path: str) -> Iterator[Record]:
    """The rows of a file, see :func:`~datamodules.records.read_records`; a missing one is an error that says so."""
    if not is_on_hub(path) and not Path(path).exists():
        raise DataError(
            f"no file {path}: put a .csv, .jsonl, .parquet or .txt file of utterances there (.gz and .zip too), set "
            "another path, or fetch a published release with `python cli.py download smcalflow`"
        )
    return read_records(path)


def file_turns(path: str, unit: Unit, with_trees: bool, needs: Sequence[Field], columns: Columns) -> Iterator[Placed]:
    dialogues: dict[str, str] = {}  # where each stands
    names, number = list[str](), 0
    if kind(path) == ".txt":
        columns = Columns()  # its lines have no names
    missing = {name for given in columns.given.values() for name in given}
    for where, record in records(path):
        number += 1
        if number == 1:
            names = list(record)
        missing -= record.keys()
        if "turns" in record and not record.keys() & set(columns.of("text", record)):
            missing.clear()  # the columns of rows
            if unit == "dialogue" and record.get("dialogue_id") is not None:
                first = dialogues.setdefault(_name(record, "dialogue_id", where), where)
                if first != where:
                    raise DataError(
                        f"{where}: the dialogue_id of line {first.rpartition(':')[2]} again, so that two dialogues "
                        "would be one unit: give every dialogue an id of its own, or drop the line"
                    )
            turns = _dialogue_turns(record, unit, where, number, with_trees)
        else:
            turns = iter([_row_turn(record, unit, where, number, with_trees, columns)])
        for turn in turns:
            if with_trees and not turn.utterance.strip():
                yield Placed(where, None)
                continue
            for field in needs:
                if getattr(turn, field) is None:
                    wanted = " and ".join(map(repr, columns.of(_COLUMN_OF[field], record))) or repr(field)
                    raise DataError(
                        f"{where}: no {wanted}, which this model needs: {_WAYS_OUT[field]} ({told(record)})"
                    )
            yield Placed(where, turn)
    if missing and names:
        raise DataError(
            f"{path}: no row has {' or '.join(map(repr, sorted(missing)))}, which data.columns names; {told(names)}: "
            "name one of these"
        )


def _dialogue_turns(dialogue: dict[str, Any], unit: Unit, where: str, number: int, with_trees: bool) -> Iterator[Turn]:
    if unit == "user":
        raise DataError(
            f"{where}: a published dialogue does not say which user held it: give plain lines "
            '{"utterance", "parse", "unit"} whose "unit" names the user, or train with unit=dialogue'
        )
    dialogue_id = dialogue.get("dialogue_id")
    if dialogue_id is None:
        if unit == "dialogue":
            raise DataError(
                f"{where}: no 'dialogue_id', which names the privacy unit: add one to every dialogue, "
                "or train with unit=utterance (each turn protected by itself)"
            )
        dialogue_id = number
    turns = dialogue["turns"]
    if not isinstance(turns, list):
        raise DataError(f"{where}: 'turns' is not a list: give the turns of the dialogue as a JSON list")
    for position, turn in enumerate(turns):
        at = f"{where}, turn {position}"
        if not isinstance(turn, dict) or not isinstance(turn.get("user_utterance"), dict):
            raise DataError(f"{at}: no 'user_utterance' object: every turn needs one with 'original_text'")
        utterance = _text(turn["user_utterance"], "original_text", at)
        tags = turn.get("tags")
        domain = tags.get("domain") if isinstance(tags, dict) else None
        index = turn.get("turn_index", position)
        name = _name(dialogue, "dialogue_id", where) if unit == "dialogue" else f"{dialogue_id}/{index}"
        tree = _tree(_text(turn, "lispress", at), at, "lispress")
        yield Turn(utterance, tree, name, domain)


def _row_turn(record: dict[str, Any], unit: Unit, where: str, number: int, with_trees: bool, columns: Columns) -> Turn:
    (column,) = columns.of("text", record) or ["text"]
    if column not in record:
        raise DataError(
            f"{where}: no {column!r} ({told(record)}): name the column of what was said as data.columns.text"
        )
    utterance = "" if record[column] is None else _text(record, column, where)
    trees = columns.of("parse", record) if with_trees else []
    parse = next((_tree(_text(record, c, where), where, c) for c in trees if record.get(c) is not None), None)
    domain = _label(record, columns, where)
    (owner,) = columns.of("unit", record) or ["unit"]
    name = record.get(owner)
    if unit == "utterance":  # every row is a unit of its own, whatever name it carries
        return Turn(utterance, parse, str(number) if name is None else f"{name}/{number}", domain)
    if name is None:
        raise DataError(
            f"{where}: no {owner!r}, which says whose line this is ({told(record)}): name the column as "
            "data.columns.unit, add one to every line, or train with unit=utterance (each line protected by itself)"
        )
    return Turn(utterance, parse, _name(record, owner, where), domain)


def _label(record: Mapping[str, Any], columns: Columns, where: str) -> str | None:
    """The label of a row; None where a column of it is empty."""
    names = columns.of("label", record)
    values: dict[str, str] = {}
    for name in names:
        value = record.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise DataError(f"{where}: {name!r} is a {type(value).__name__}: a label must be a text or a number")
        values[name] = str(value).strip()
        if not values[name]:
            return None
    return (control_code(values) if len(values) > 1 else values[names[0]]) if values else None


def _name(record: dict[str, Any], key: str, where: str) -> str:
    try:
        return unit_name(record[key])
    except ValueError as error:
        raise DataError(f"{where}: {key!r} {error}") from None


def _text(record: dict[str, Any], key: str, where: str) -> str:
    value = record.get(key)
    if not isinstance(value, str):
        what = f"no {key!r}" if value is None else f"{key!r} is a {type(value).__name__}, not a string"
        raise DataError(f"{where}: {what}: every record needs {key!r} as a string")
    return value


def _tree(text: str, where: str, column: str) -> str:
    if is_program(text):
        try:
            return to_lispress(text)
        except ThingTalkError as fault:
            raise DataError(f"{where}: unreadable ThingTalk: {fault}: correct the program or drop the line") from None
    error = first_error(text)
    if error is None and "(" in text:
        return text
    # The message of the parser may quote the tree, which is private: only the position is told.
    wrong = (
        "a word alone is no parse tree" if error is None else f"unreadable parse tree at character {error.position + 1}"
    )
    raise DataError(
        f"{where}: {wrong}: correct the tree or drop the line; if {column!r} holds labels, set "
        f"data.columns.label={column} and systems=[domain]"
    )
