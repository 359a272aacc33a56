"""Whose a row is, where nobody has said what is protected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from datamodules.reading.columns import Columns, Layout
from datamodules.reading.unit_names import folded_name, unit_name
from doppel.errors import DataError


class Owners:
    """Refuses a file that has several turns of one person or dialogue, so that somebody says what is protected.

    Args:
        columns: Of the file.
    """

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._places: dict[tuple[str, str], str] = {}  # where the first turn of each stands, by the column and the name

    def refuse_again(self, record: dict[str, Any], layout: Layout, where: str) -> None:
        """Refuse a turn of whom, or of a dialogue of which, there was one before.

        Raises:
            DataError: There was.
        """
        row = {"dialogue_id": where} | record if layout.is_dialogue else record
        is_conversation = self._columns.messages is not None
        owners = [name for name in layout.owners if not is_conversation or name != layout.unit]
        before = named_before(self._places, owners, row, where)
        if before is None or (is_conversation and before[1] == where):  # another turn of the same one
            return
        column, first = before
        together = "data.unit=dialogue" if layout.is_dialogue else "data.unit=user (or dialogue)"
        if not layout.is_dialogue and column != layout.unit:
            together = f"{together} and data.columns.unit={column}"
        alone = "utterance, so that each"
        if is_conversation:
            together, alone = f"data.columns.unit={column}", "dialogue, so that each conversation"
        line = first.rpartition(":")[2]
        raise DataError(
            f"the same {column!r} as at {f'line {line}' if line.isdigit() else first}, and nothing "
            f"says what is protected: set {together}, so that all requests of one name are protected together, or "
            f"data.unit={alone} is protected by itself",
            about=where,
        )


def named_before(
    places: dict[tuple[str, str], str], owners: Iterable[str], row: Mapping[str, object], where: str
) -> tuple[str, str] | None:
    """Note whose a row is; return the column by which it is somebody's of whom there was one before, and where that is.

    Args:
        places: Where the first row of each stands, by the column and the name, folded
            (:func:`~datamodules.reading.unit_names.folded_name`); this row's are added.
        owners: Columns that seem to say whose a row is.
        row: Its cells.
        where: Its place.
    """
    for column in owners:
        try:
            key = column, folded_name(unit_name(row.get(column)))
        except ValueError:  # it names nobody
            continue
        if key in places:
            return column, places[key]
        places[key] = where
    return None
