"""Readers: tables, JSON lines, published dialogue files and the embedded grammar become turns."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, get_args
from urllib.parse import parse_qsl, urlsplit

from datamodules.columns import Columns
from datamodules.file_turns import Placed, file_turns, records
from datamodules.hub import hub_files, is_on_hub
from datamodules.records import data_files
from datamodules.selection import Selection
from datamodules.turn import Field, Turn, Unit
from doppel.errors import DataError
from doppel.grammar import generate
from doppel.privacy.fingerprint import sealed

#: Arguments of an ``embedded:`` path, with their types.
_EMBEDDED_ARGUMENTS = {"num": int, "seed": int, "skew": float}


def read_turns(
    path: str, unit: Unit, with_trees: bool = True, needs: Sequence[Field] = (), columns: Columns | None = None
) -> list[Turn]:
    """Read all user turns of a file, in order.

    Names of dialogues and users are normalised (:func:`~datamodules.turn.unit_name`). Two dialogues of one id are
    refused: they would be one unit, and adding one of them would change the other's. As utterances their turns are
    units of their own, whatever their names.

    Three inputs are known:

    * rows of any form that :func:`~datamodules.records.read_records` knows, with the columns ``utterance`` (or
      ``text``), ``parse``, ``unit`` and ``domain`` (or ``label``), unless ``columns`` says otherwise; only
      the text is always needed, and ``unit`` wherever the unit is a dialogue or a user;
    * published dialogue lines (SMCalFlow 2.0, TreeDST), one dialogue a line, every user turn including those
      marked ``skip``, without context: ``{"dialogue_id", "turns": [{"turn_index", "lispress",
      "user_utterance": {"original_text"}, "tags": {"domain"}}]}``;
    * ``embedded:NAME?num=4000&seed=1&skew=1.0``: turns of the embedded grammar (the name is free: say
      ``train``).

    Formal guarantees:
        Every turn is a function of its own row, and a row without text is no turn whatever the others hold. So adding
        or removing the rows of one unit adds or removes the turns of this unit alone, in every form. How many rows have
        no text is a private number: no message, log or record tells it. An error names a line, to whoever holds the
        file and sees the console; it never quotes the line, nor the name of a unit.

    Args:
        path: A file or a folder in one of these forms, or an ``embedded:`` path.
        unit: ``"utterance"``: every turn is a unit of its own; ``"dialogue"``: all turns of a dialogue (or,
            in rows, all rows with the same ``unit``) are one; ``"user"``: all rows with the same
            ``unit`` are one, which only rows can say.
        with_trees: Whether rows are read with their trees; False neither needs nor checks any, and keeps rows without
            text, as for samples, which are what a model wrote.
        needs: Fields that every turn must have, such as ``parse`` for a model of trees.
        columns: What the columns are called; None for the usual names.

    Returns:
        The turns, at least one.

    Raises:
        DataError: The file is missing, empty or unreadable, or a row of it is; the message says which one.
    """
    placed = place_turns(path, unit, with_trees, needs, columns)
    turns = [found.turn for found in placed if found.turn is not None]
    if not turns:
        raise DataError(f"{path} holds no user turn: give a file with at least one")
    return _told_apart(turns) if unit == "utterance" else turns


def place_turns(
    path: str, unit: Unit, with_trees: bool = True, needs: Sequence[Field] = (), columns: Columns | None = None
) -> Iterator[Placed]:
    """The turns of a file with their places, and the places of rows without text; as :func:`read_turns` reads them."""
    if unit not in get_args(Unit):
        raise DataError(f"unit is {unit!r}: it must be one of {', '.join(map(repr, get_args(Unit)))}")
    if is_embedded(path):
        return (Placed(path, turn) for turn in _embedded(path, unit))
    return file_turns(path, unit, with_trees, needs, columns or Columns())


def reference_columns(path: str, columns: Columns | None) -> Columns | None:
    """The columns of a file that is compared with the private one, and may be of another form.

    Those of the private file where it has them, else the usual ones.
    """
    if columns is None or not columns.key or is_embedded(path):
        return None
    _, first = next(records(path), ("", {}))
    return columns.among(first)


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


def data_fingerprint(path: str, selection: Selection | None = None, columns: Columns | None = None) -> str:
    """What tells a data set from others, in ledgers, reports and tables: its digest under a secret key."""
    return sealed(content_digest(path, selection, columns))


def is_copy(path: str, of: Iterable[str | None]) -> bool:
    """Whether a file is one of these files, or has the same bytes under another name.

    The embedded grammar is public, so it is a copy of nothing. A file that is not there has no copy.

    Args:
        path: The file.
        of: Others; None is passed over.

    Raises:
        DataError: The file is missing or may not be read.
    """
    others = {expand_path(other) for other in of if other and not is_embedded(other)}
    if is_embedded(path) or not others:
        return False
    digest = content_digest(expand_path(path))
    return any((is_on_hub(other) or os.path.exists(other)) and content_digest(other) == digest for other in others)


def content_digest(path: str, selection: Selection | None = None, columns: Columns | None = None) -> str:
    """SHA-256 of a file's bytes, or of the turns that an ``embedded:`` path stands for; never to be shown.

    The same rows written in another form are another data set: what they cost is added up, never shared.

    Args:
        path: The file, or a folder, whose files with rows count.
        selection: What is made of its turns; part of the digest where it changes anything.
        columns: Which columns are read, likewise.

    Raises:
        DataError: The file is missing or may not be read.
    """
    digest = hashlib.sha256()
    if is_embedded(path):
        for turn in read_turns(path, "dialogue"):
            digest.update(json.dumps([turn.utterance, turn.parse, turn.unit, turn.domain]).encode())
    elif is_on_hub(path):
        for _, content in hub_files(path):
            digest.update(hashlib.sha256(content).digest())
    else:
        try:
            for file in data_files(path):
                with open(file, "rb") as stream:
                    digest.update(hashlib.file_digest(stream, "sha256").digest())
        except OSError:
            read_turns(path, "utterance")  # says best what is wrong
            raise
    digest.update("".join(part.key for part in (selection, columns) if part is not None).encode())
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
