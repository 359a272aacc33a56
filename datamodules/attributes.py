"""Rows of a private table as places of public values, and whose each row is."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datamodules.attribute_codes import FILL
from datamodules.columns import Columns, listed
from datamodules.records import Record, read_records
from datamodules.sources import expand_path
from datamodules.turn import Unit, unit_name
from doppel.errors import DataError, UserError
from doppel.tables.made import Made
from doppel.tables.marginals import Table
from doppel.tables.schema import Column, Schema


@dataclass(frozen=True)
class Attributes:
    """What is read of a table.

    Attributes:
        path: The table.
        columns: To be read; None for all of the schema.
        schema: File of public values; None: those of the table itself, which ``values_are_public`` says.
        values_are_public: That the values which occur in the table tell nobody anything.
        unit: What is protected; None: nobody has said, so a row, and a table that seems to have several rows of
            somebody is refused.
        unit_column: Whose row it is.
    """

    path: str
    columns: Sequence[str] | None = None
    schema: Path | None = None
    values_are_public: bool = False
    unit: Unit | None = None
    unit_column: str | None = None

    def __post_init__(self) -> None:
        """Refuse a table of which nothing says which values are public."""
        if self.schema is None and not self.values_are_public:
            raise UserError(
                "which values occur in a private table is private too: give --schema with the values of each column "
                "from a public source, or say --values-are-public if the table's own values tell nobody anything"
            )

    def read(self) -> tuple[Schema, Table]:
        """The schema and the coded table.

        Formal guarantees:
            A row is coded by itself and by public values, and belongs to the unit that it names. So adding or removing
            one unit adds or removes its rows alone. An error names a line and a column, and quotes no cell.

        Raises:
            UserError: Nothing says what is protected.
            DataError: The table or the schema cannot be read.
        """
        if self.unit_column is not None and self.unit in (None, "utterance"):
            raise UserError(
                f"--unit-column is {self.unit_column}, but each row would be protected by itself: give --unit user (or "
                "dialogue), or leave --unit-column out"
            )
        records = list(read_records(expand_path(self.path)))
        if not records:
            raise DataError("it has no rows: give a table with at least two", about=self.path)
        schema = self._schema(records)
        known = Columns(label=schema.sources or None, unit=self.unit_column)
        present: set[str] = set().union(*(row.keys() for _, row in records))
        made = [column.made for column in schema.columns if column.made and column.source is None]
        needed = {*schema.sources, *(self._made_of(own, present) for own in made)}
        needed |= set() if self.unit in (None, "utterance") else {self._owner}
        for name in [*schema.sources, *sorted(needed - set(schema.sources))]:
            if name not in present:
                way = FILL if name in (column.source for column in schema.filled) else ""
                way = ": name the column that says whose row it is by --unit-column" if name == self._owner else way
                raise DataError(f"no row has a column {name!r} ({listed(present, known)}){way}", about=self.path)
        units = [self._unit(place, row) for place, row in records]
        if self.unit is None:
            self._refuse_rows_of_one(records, known)
        text = self._made_of("words", present)
        codes = [
            schema.codes(row, place, *(_as_text(row.get(name)) for name in (text, "parse", "label")))
            for place, row in records
        ]
        return schema, Table.of_units(codes, units, schema.sizes)

    def known(self, values: Mapping[str, Sequence[str]]) -> Schema:
        """The schema of a table that is not opened: of the file, or of values that were declared public before."""
        if self.schema is not None:
            return self._schema([])
        return Schema(tuple(Column.of_values(name, values[name]) for name in values)).only(
            self.columns or list(values), self.path
        )

    @staticmethod
    def _made_of(made: Made, names: Collection[str]) -> str:
        """The column that has what an attribute is made of, by its usual name."""
        what = {"words": "text", "label": "label"}.get(made, "parse")
        return Columns().of(what, names)[0]

    def _schema(self, records: Sequence[Record]) -> Schema:
        if self.schema is not None:
            schema = Schema.read(self.schema)
            return schema if self.columns is None else schema.only(self.columns, self.schema)
        names = list(dict.fromkeys(name for _, row in records for name in row))
        owners = Columns(unit=self.unit_column).owners(names)
        return Schema.of_rows(self.columns or [n for n in names if n not in owners], [row for _, row in records])

    def _unit(self, place: str, row: dict[str, Any]) -> str:
        if self.unit in (None, "utterance"):
            return place
        try:
            return unit_name(row.get(self._owner))
        except ValueError as error:
            raise DataError(
                f"{self._owner!r}, which says whose row this is, {error}; another column is named by --unit-column",
                about=place,
            ) from None

    @property
    def _owner(self) -> str:
        return self.unit_column or "unit"

    def _refuse_rows_of_one(self, records: Sequence[Record], known: Columns) -> None:
        seen: dict[tuple[str, str], str] = {}
        for place, row in records:
            for column in known.owners(list(row)):
                try:
                    first = seen.setdefault((column, unit_name(row[column])), place)
                except ValueError:  # it names nobody
                    continue
                if first != place:
                    raise DataError(
                        f"another row of whom {column!r} names in line {first.rpartition(':')[2]}, and nothing says "
                        f"what is protected: give --unit user --unit-column {column}, so that all rows of one name "
                        "are protected together, or --unit utterance, so that each row is protected by itself",
                        about=place,
                    )


def _as_text(cell: object) -> str | None:
    return cell if isinstance(cell, str) else None
