"""Several labels of a request as one text, as they are or by a public schema: ``Category: Food | Stars: 5``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache

from doppel.errors import DataError
from doppel.tables.schema import Schema

#: Between the attributes of a code.
BETWEEN = " | "
#: What to do about a column that a model is to fill.
FILL = ": a model fills it, python cli.py fill TABLE --schema SCHEMA --out FILLED.jsonl, and FILLED.jsonl is read then"


#: A label that names itself, as in ``Review Stars: 5.0``; a whole code is a row of these.
_NAME = r"[A-Z][\w &/-]{0,39}"
_CODE = re.compile(rf"(?:^| \| )({_NAME}): (\S.*?)(?= \| {_NAME}: |$)")


def control_code(labels: Mapping[str, str]) -> str:
    """Join several labels of a row into one text: ``Business Category: Restaurants | Review Stars: 5.0``.

    This is the form of Yue et al. (2023), *Synthetic Text Generation with Differential Privacy*. A function of this row
    alone.

    Args:
        labels: Value of each column, in order. A value that names itself (``Review Stars: 5.0``) is taken as it is;
            else ``review_stars`` becomes ``Review Stars``.
    """
    return " | ".join(_named_value(column, value) for column, value in labels.items())


@lru_cache(maxsize=4096)
def _named_value(column: str, value: str) -> str:
    if re.match(rf"{_NAME}: \S", value):
        return value
    name = re.sub(r"[_\s]+", " ", column).strip()
    return f"{name.title() if name.islower() else name}: {value}"


def labels_of(codes: Sequence[str]) -> dict[str, list[str]]:
    """Split a text of :func:`control_code` into its labels, by their names.

    Args:
        codes: Of each row. Codes without names are one label, ``label``.

    Returns:
        Values of each label, one a row; a row that has no value of a label has an empty one.
    """
    rows = [_CODE.findall(code) or [("label", code)] for code in codes]
    names = dict.fromkeys(name for row in rows for name, _ in row)
    return {name: [dict(row).get(name, "") for row in rows] for name in names}


class AttributeCodes:
    """Writes the values of a request as a control code, and reads it again.

    :func:`control_code` says what that is. The attributes stand in the order of the
    schema; each has one of its public values, or "other".

    Formal guarantees:
        The code of a row is a function of this row and of the public schema.

    Args:
        schema: The public values of each attribute.
        about: The file that has them, for errors.

    Attributes:
        parts: Of each attribute, what a code says for each of its values, such as ``Stars: 5``.

    Raises:
        DataError: A name or a value could not be read again.
    """

    def __init__(self, schema: Schema, about: object = "") -> None:
        self.schema = schema
        self.parts = [[control_code({c.name: value}) for value in c.values] for c in schema.columns]
        for column, parts in zip(schema.columns, self.parts, strict=True):
            for value, part in zip(column.values, parts, strict=True):
                if BETWEEN in part or list(labels_of([part]).values()) != [[value]]:
                    raise DataError(
                        f"the attribute {column.name!r} with the value {value!r} cannot be read in a prompt: a "
                        "name begins with a letter from A to Z and has at most 40 letters, digits, blanks, &, / and -; "
                        "leave lines and | out of both, and what looks like a name (`Name: value`) out of the value",
                        about=about,
                    )
        if len(set(self.names)) < len(self.names):
            raise DataError("two attributes have one name in prompts: rename one", about=about)

    @cached_property
    def names(self) -> list[str]:
        """The attributes as codes call them, such as ``Review Stars`` for ``review_stars``."""
        return [part[0].partition(": ")[0] for part in self.parts]

    def write(self, places: Sequence[int]) -> str:
        """Return the code of a row, by the places of its values in the order of the schema."""
        return BETWEEN.join(parts[place] for parts, place in zip(self.parts, places, strict=True))

    def read(self, code: str) -> list[int]:
        """Return the indices of the values of a code.

        Raises:
            DataError: It is none; it is not quoted.
        """
        try:
            found = self.read_some(code)
        except DataError:
            found = {}
        if len(found) < len(self.parts):
            raise DataError(f"a prompt does not have the attributes {', '.join(self.names)}: make the prompts again")
        return [found[place] for place in range(len(self.parts))]

    def read_some(self, code: str) -> dict[int, int]:
        """Return the indices of the values of a code, by the index of their attribute; it may lack attributes.

        Raises:
            DataError: A part of it is no attribute with a public value; the message quotes it.
        """
        found: dict[int, int] = {}
        for part in code.split(BETWEEN):
            place, value = self._places.get(part, (-1, -1))
            if place < 0 or place in found:
                known = {name.casefold(): own for name, own in zip(self.names, self.parts, strict=True)}
                meant = known.get(part.partition(": ")[0].casefold(), self.names)
                raise DataError(f"there is no attribute {part!r} with such a value: there are {', '.join(meant)}")
            found[place] = value
        return found

    @cached_property
    def _places(self) -> dict[str, tuple[int, int]]:
        """Attribute and value of each part of a code."""
        return {part: (place, value) for place, parts in enumerate(self.parts) for value, part in enumerate(parts)}
