"""A public table of slots: which quoted strings are names, of which kind, and what fills a slot after sampling."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from doppel.errors import DataError
from doppel.files import read_list, read_yaml
from doppel.grammar import lexicon
from doppel.lispress.slots import SlotKinds

#: The shipped table, ``doppel/grammar/slots.yaml``.
SHIPPED = "shipped"

_FILLERS: Mapping[str, Callable[[random.Random], tuple[str, str]]] = {
    "person": lexicon.person,
    "city": lexicon.city,
    "venue": lexicon.venue,
    "place_kind": lexicon.place_kind,
    "location": lexicon.location,
    "comment": lexicon.comment,
    "subject": lexicon.subject,
    "title": lexicon.title,
}


class SlotTable:
    """Kinds of strings, and what fills their slots.

    Args:
        content: Of each kind ``in``, the names of :class:`~doppel.lispress.slots.SlotKinds`, and ``fill``: a list of
            the embedded grammar (``person``, ``city``, ``venue``, ``place_kind``, ``location``, ``comment``,
            ``subject``, ``title``) or a text file with one value a line.
        where: The file, for errors; paths of files are relative to its folder.

    Attributes:
        kinds: The kinds.
        digest: Of the kinds and their places, which a training depends on; what fills them may change afterwards.
        digest_with_values: Of what fills them too.

    Raises:
        DataError: The table or a file of values cannot be used.
    """

    def __init__(self, content: Any, where: Path) -> None:
        if not isinstance(content, dict) or not content:
            raise DataError(
                "no table of placeholders: write `person: {in: [PersonName.apply], fill: person}`", about=where
            )
        names: dict[str, list[str]] = {}
        self._values: dict[str, tuple[str, ...]] = {}
        self._fillers: dict[str, Callable[[random.Random], tuple[str, str]]] = {}
        for kind, entry in content.items():
            if not isinstance(entry, dict) or entry.keys() != {"in", "fill"} or not _is_texts(entry["in"]):
                raise DataError(
                    f"the kind {kind!r} needs `in`, a list of functions, fields or arguments, and `fill`, a list of "
                    f"values: one of {', '.join(_FILLERS)}, or a file with one value a line",
                    about=where,
                )
            names[str(kind)] = entry["in"]
            fill = str(entry["fill"])
            if fill in _FILLERS:
                self._fillers[str(kind)] = _FILLERS[fill]
            else:
                self._values[str(kind)] = _read_values(where.parent / fill)
        try:
            self.kinds = SlotKinds(names)
        except ValueError as error:
            raise DataError(str(error), about=where) from error
        self.digest = _digest(names)
        fills = {kind: content[kind]["fill"] for kind in content}
        self.digest_with_values = _digest([names, fills, self._values])

    def draw(self, rng: random.Random, kind: str) -> str:
        """Return a public value of a kind."""
        if kind in self._fillers:
            return self._fillers[kind](rng)[0]
        values = self._values[kind]
        return values[int(rng.random() * len(values))]


@lru_cache(maxsize=8)
def slot_table(name: str) -> SlotTable:
    """Return the shipped table, or one of a YAML file.

    Args:
        name: ``shipped`` or a path.

    Raises:
        DataError: There is no such file, or it cannot be used.
    """
    if name == SHIPPED:
        where = Path(str(resources.files(__package__).joinpath("slots.yaml")))
    else:
        where = Path(name)
        if not where.is_file():
            raise DataError(f"no table of placeholders there: give a YAML file, or {SHIPPED!r}", about=where)
    return SlotTable(read_yaml(where), where)


def _digest(content: object) -> str:
    return hashlib.blake2b(json.dumps(content).encode(), digest_size=8).hexdigest()


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)


def _read_values(path: Path) -> tuple[str, ...]:
    if not path.is_file():
        raise DataError("no values for placeholders there: give a text file with one value a line", about=path)
    values = tuple(read_list(path))
    if not values:
        raise DataError("no value in it: write one a line", about=path)
    return values
