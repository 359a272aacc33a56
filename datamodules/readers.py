"""Readers: published dialogue files, plain JSON lines and the embedded grammar become turns."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import parse_qsl, urlsplit

from datamodules.selection import Selection
from datamodules.turn import Field, Turn, unit_name
from doppel.errors import DataError
from doppel.files import read_json_lines
from doppel.grammar import generate
from doppel.lispress import first_error
from doppel.privacy.fingerprint import sealed

Unit = Literal["utterance", "dialogue", "user"]

#: What to do about a turn without a field that the model needs.
_WAYS_OUT = {
    "utterance": "add one, or drop the line",
    "parse": "add the tree, drop the line, let a semantic parser write the trees, or train a model of utterances alone "
    "(systems: [one_stage])",
    "domain": "add one, drop the line, or train a model without domains",
}

#: Arguments of an ``embedded:`` path, with their types.
_EMBEDDED_ARGUMENTS = {"num": int, "seed": int, "skew": float}


@dataclass(frozen=True)
class DataSummary:
    """How much a file holds: user turns, privacy units, and turns that have no tree."""

    num_turns: int
    num_units: int
    num_without_parse: int


def check(path: str, unit: Unit = "utterance", needs: Sequence[Field] = ()) -> DataSummary:
    """Read a file as training will, before anything starts, and say how much it holds.

    Args:
        path: As in a configuration; ``$VARIABLE`` is filled in.
        unit: As for :func:`read_turns`.
        needs: Likewise.

    Raises:
        DataError: The file cannot be used; the message names the line.
    """
    turns = read_turns(expand_path(path), unit, needs=needs)
    num_units = len({turn.unit for turn in turns})
    return DataSummary(len(turns), num_units, sum(turn.parse is None for turn in turns))


def read_turns(path: str, unit: Unit, with_trees: bool = True, needs: Sequence[Field] = ()) -> list[Turn]:
    """Read all user turns of a file, in order.

    Names of dialogues and users are normalised (:func:`~datamodules.turn.unit_name`). Two dialogues of one id are
    refused: they would be one unit, and adding one of them would change the other's. As utterances their turns are
    units of their own, whatever their names.

    Three inputs are known:

    * published dialogue lines (SMCalFlow 2.0, TreeDST), one dialogue a line, every user turn including those
      marked ``skip``, without context: ``{"dialogue_id", "turns": [{"turn_index", "lispress",
      "user_utterance": {"original_text"}, "tags": {"domain"}}]}``;
    * plain lines ``{"utterance", "parse", "unit", "domain", "weight"}``, of which only ``utterance`` is always needed
      and ``unit`` wherever the unit is a dialogue or a user;
    * ``embedded:NAME?num=4000&seed=1&skew=1.0``: turns of the embedded grammar (the name is free: say
      ``train``).

    Args:
        path: A ``.jsonl`` file, the same compressed as ``.gz``, a ``.zip`` that holds one, or an
            ``embedded:`` path.
        unit: ``"utterance"``: every turn is a unit of its own; ``"dialogue"``: all turns of a dialogue (or,
            in plain lines, all lines with the same ``unit``) are one; ``"user"``: all lines with the same
            ``unit`` are one, which only plain lines can say.
        with_trees: Whether plain lines are read with their trees; False neither needs nor checks any, as for samples
            whose trees are what a model wrote.
        needs: Fields that every turn must have, such as ``parse`` for a model of trees.

    Returns:
        The turns, at least one.

    Raises:
        DataError: The file is missing, empty or unreadable, or a line of it is; the message says which one.
    """
    if unit not in get_args(Unit):
        raise DataError(f"unit is {unit!r}: it must be one of {', '.join(map(repr, get_args(Unit)))}")
    turns = _embedded(path, unit) if is_embedded(path) else list(_file_turns(Path(path), unit, with_trees, needs))
    if not turns:
        raise DataError(f"{path} holds no user turn: give a file with at least one")
    return _told_apart(turns) if unit == "utterance" else turns


def expand_path(path: str) -> str:
    """Replace ``~`` and ``$VARIABLE`` or ``${VARIABLE}`` in a path of a configuration.

    Raises:
        DataError: A variable is not set.
    """
    expanded = os.path.expanduser(os.path.expandvars(path))
    unset = re.search(r"\$\{?(\w+)", expanded)
    if unset:
        raise DataError(f"{path}: the environment variable {unset[1]} is not set: export it, or write the path out")
    return expanded


def is_embedded(path: str) -> bool:
    """Whether a path names the embedded grammar rather than a file."""
    return path.startswith("embedded:")


def data_fingerprint(path: str, selection: Selection | None = None) -> str:
    """What tells a data set from others, in ledgers, reports and tables: its digest under a secret key."""
    return sealed(content_digest(path, selection))


def content_digest(path: str, selection: Selection | None = None) -> str:
    """SHA-256 of a file's content, or of the turns that an ``embedded:`` path stands for; never to be shown.

    Args:
        path: The file.
        selection: What is made of its turns; part of the digest where it changes anything.

    Raises:
        DataError: The file is missing or may not be read.
    """
    digest = hashlib.sha256()
    if is_embedded(path):
        for turn in read_turns(path, "dialogue"):
            digest.update(json.dumps([turn.utterance, turn.parse, turn.unit, turn.domain]).encode())
    else:
        try:
            with open(path, "rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
        except OSError:
            read_turns(path, "utterance")  # says best what is wrong
            raise
    if selection is not None:
        digest.update(selection.key.encode())
    return digest.hexdigest()


def _embedded(path: str, unit: Unit) -> list[Turn]:
    arguments: dict[str, Any] = {}
    for name, value in parse_qsl(urlsplit(path).query, keep_blank_values=True):
        try:
            arguments[name] = _EMBEDDED_ARGUMENTS[name](value)
        except KeyError:
            known = ", ".join(_EMBEDDED_ARGUMENTS)
            raise DataError(f"{path}: unknown argument {name!r}; known are {known}") from None
        except ValueError:
            raise DataError(f"{path}: {name}={value!r} is not a number") from None
    if unit == "user":
        raise DataError(f"{path}: the embedded grammar has no users: train with unit=dialogue or unit=utterance")
    if arguments.setdefault("num", 4000) < 1:
        raise DataError(f"{path}: num is {arguments['num']}; it must be at least 1")
    if arguments.setdefault("skew", 1.0) < 0:
        raise DataError(f"{path}: skew is {arguments['skew']}; it must not be negative")
    turns = generate(arguments["num"], seed=arguments.get("seed", 1), skew=arguments["skew"])
    return [Turn(t.utterance, t.parse, t.unit if unit == "dialogue" else str(i), t.domain) for i, t in enumerate(turns)]


def _told_apart(turns: list[Turn]) -> list[Turn]:
    """Turns as units of their own: a name that came before gets a number."""
    seen: Counter[str] = Counter()
    for place, turn in enumerate(turns):
        seen[turn.unit] += 1
        if seen[turn.unit] > 1:
            turns[place] = replace(turn, unit=f"{turn.unit}#{seen[turn.unit]}")
    return turns


def _file_turns(path: Path, unit: Unit, with_trees: bool, needs: Sequence[Field]) -> Iterator[Turn]:
    if not path.is_file():
        raise DataError(
            f"no file {path}: put a .jsonl, .jsonl.gz or .zip file of dialogues there, set another path, or "
            "fetch a published release with `python cli.py download smcalflow`"
        )
    lines: dict[str, int] = {}  # where each dialogue stands
    for number, record in read_json_lines(path):
        where = f"{path}:{number}"
        if not with_trees:
            record.pop("parse", None)
        read = _dialogue_turns if "turns" in record else _plain_turn
        if unit == "dialogue" and record.get("dialogue_id") is not None:
            first = lines.setdefault(_name(record, "dialogue_id", where), number)
            if first != number:
                raise DataError(
                    f"{where}: the dialogue_id of line {first} again, so that two dialogues would be one unit: give "
                    "every dialogue an id of its own, or drop the line"
                )
        for turn in read(record, unit, where, number):
            for name in needs:
                if getattr(turn, name) is None:
                    raise DataError(f"{where}: no {name!r}, which this model needs: {_WAYS_OUT[name]}")
            yield turn


def _dialogue_turns(dialogue: dict[str, Any], unit: Unit, where: str, number: int) -> Iterator[Turn]:
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
        yield Turn(utterance, _tree(_text(turn, "lispress", at), at), name, domain)


def _plain_turn(record: dict[str, Any], unit: Unit, where: str, number: int) -> Iterator[Turn]:
    utterance = _text(record, "utterance", where)
    parse = None if record.get("parse") is None else _tree(_text(record, "parse", where), where)
    domain = None if record.get("domain") is None else _text(record, "domain", where)
    name, weight = record.get("unit"), _weight(record, where)
    if unit == "utterance":  # every line is a unit of its own, whatever name it carries
        yield Turn(utterance, parse, str(number) if name is None else f"{name}/{number}", domain, weight)
    elif name is not None:
        yield Turn(utterance, parse, _name(record, "unit", where), domain, weight)
    else:
        raise DataError(
            f"{where}: no 'unit', which says whose line this is: add one to every line, "
            "or train with unit=utterance (each line protected by itself)"
        )


def _name(record: dict[str, Any], key: str, where: str) -> str:
    try:
        return unit_name(record[key])
    except ValueError as error:
        raise DataError(f"{where}: {key!r} {error}") from None


def _weight(record: dict[str, Any], where: str) -> float:
    value = record.get("weight", 1.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise DataError(f"{where}: 'weight' is no number in [0, 1]: correct it, or leave it out, which means 1")
    return float(value)


def _text(record: dict[str, Any], key: str, where: str) -> str:
    value = record.get(key)
    if not isinstance(value, str):
        what = f"no {key!r}" if value is None else f"{key!r} is a JSON {type(value).__name__}, not a string"
        raise DataError(f"{where}: {what}: every record needs {key!r} as a string")
    return value


def _tree(text: str, where: str) -> str:
    error = first_error(text)
    if error is not None:
        # The message of the parser may quote the tree, which is private: only the position is told.
        raise DataError(
            f"{where}: unreadable parse tree at character {error.position + 1}: correct the tree or drop the line"
        )
    return text
