"""Rows of a table, or of JSON lines, as turns: each of its own row alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from datamodules.reading.attribute_codes import AttributeCodes
from datamodules.reading.cells import label_of, text_of, tree_of
from datamodules.reading.columns import Columns, Layout, listed
from datamodules.reading.example import Example, Unit
from datamodules.reading.records import head_of
from datamodules.reading.units import UnitNames
from doppel.errors import DataError


@dataclass(frozen=True)
class Reading:
    """How a file is read.

    Attributes:
        unit: What is protected.
        with_trees: Whether rows are read with their trees.
        columns: What the columns of this file are called.
        codes: How its attributes are written; None: labels are those of its columns.
        names: Reads the names of its units.
    """

    unit: Unit
    with_trees: bool
    columns: Columns
    codes: AttributeCodes | None
    names: UnitNames

    @property
    def reads_trees(self) -> bool:
        """Whether a tree is looked at."""
        return self.with_trees or (self.codes is not None and self.codes.schema.needs_trees)

    @property
    def reads_labels(self) -> bool:
        """Whether a label is looked at."""
        return self.codes is None or self.codes.schema.needs_label

    def name(self, record: Mapping[str, Any], key: str, where: str) -> str:
        """Return the name of a unit.

        Raises:
            DataError: It names nobody.
        """
        try:
            return self.names.read(record[key], where, repr(key))
        except ValueError as error:
            raise DataError(f"{key!r} {error}", about=where) from None


def row_example(record: dict[str, Any], layout: Layout, where: str, number: int, how: Reading) -> Example:
    """Return the turn of a row.

    Args:
        record: Its cells.
        layout: What they hold.
        where: Its place.
        number: In the file, from 1.
        how: How it is read.

    Raises:
        DataError: A cell is missing that every row needs, or is none of its kind.
    """
    if layout.text not in record:
        mend = "name the column of what was said as data.columns.text"
        if isinstance(record.get("messages"), list):
            mend = "of conversations in OpenAI's form give data.columns.messages=messages"
        raise DataError(f"no {layout.text!r} ({listed(record, how.columns)}): {mend}", about=head_of(where))
    column = next(iter(layout.owners), None)
    utterance = "" if record[layout.text] is None else text_of(record, layout.text, where)
    parse = None
    if how.reads_trees and layout.parse is not None and record.get(layout.parse) is not None:
        parse = tree_of(text_of(record, layout.parse, where), where, layout.parse)
    label = label_of({name: record.get(name) for name in layout.labels}, where) if how.reads_labels else None
    if how.codes is not None:
        label = how.codes.of_row(record, where, utterance, parse, label)
    if how.unit == "utterance":  # every row is a unit of its own, whatever name it carries
        owner = record.get(layout.unit)
        return Example(utterance, parse, str(number) if owner is None else f"{owner}/{number}", label, where, column)
    if layout.unit not in record:
        raise DataError(
            f"no {layout.unit!r}, which says whose line this is ({listed(record, how.columns)}): name the column "
            "as data.columns.unit, add one to every line, or train with unit=utterance (each line protected by "
            "itself)",
            about=head_of(where),
        )
    return Example(utterance, parse, how.name(record, layout.unit, where), label, where, column)
