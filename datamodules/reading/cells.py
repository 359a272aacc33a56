"""What cells of a row hold: a text, a tree, a label; each error names the cell and never quotes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from datamodules.reading.attribute_codes import control_code
from doppel.errors import DataError
from doppel.files import kind_of
from doppel.lispress import first_error
from doppel.tables.schema import OTHER, as_word


def label_of(cells: Mapping[str, object], where: str) -> str | None:
    """Return the label that the cells of some columns make; None where one of them is empty.

    Raises:
        DataError: One is no text or number.
    """
    words: dict[str, str] = {}
    for name, cell in cells.items():
        if not isinstance(cell, str | int | float | None):
            raise DataError(f"{name!r} is {kind_of(cell)}: a label must be a text or a number", about=where)
        words[name] = as_word(cell)
        if words[name] == OTHER and str(cell).strip() != OTHER:
            return None
    return control_code(words) if len(words) > 1 else next(iter(words.values()), None)


def text_of(record: Mapping[str, Any], key: str, where: str) -> str:
    """Return the text under a key.

    Raises:
        DataError: There is none.
    """
    value = record.get(key)
    if not isinstance(value, str):
        what = f"no {key!r}" if value is None else f"{key!r} is {kind_of(value)}, not a text"
        raise DataError(f"{what}: every record needs {key!r} as a text", about=where)
    return value


def tree_of(text: str, where: str, column: str) -> str:
    """Return a Lispress tree.

    Raises:
        DataError: It is none; the message of its parser may quote it, which is private, so only the position is said.
    """
    error = first_error(text)
    if error is None and "(" in text:
        return text
    wrong = (
        "a word alone is no parse tree" if error is None else f"unreadable parse tree at character {error.position + 1}"
    )
    raise DataError(
        f"{wrong}: correct the tree or drop the line; if {column!r} holds labels, set "
        f"data.columns.label={column} and systems=[labels]",
        about=where,
    )
