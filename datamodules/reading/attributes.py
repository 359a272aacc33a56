"""Rows of a private table as places of public values, and whose each row is."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from datamodules.reading.attribute_codes import FILL
from datamodules.reading.columns import USUAL, Columns, Layout, listed
from datamodules.reading.example import Unit
from datamodules.reading.files import expand_path
from datamodules.reading.records import read_records
from datamodules.reading.units import NameRule, UnitNames, line_of, named_before
from doppel.errors import DataError, UserError
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
        unit_names: Whether names that differ in spelling alone are one; None: nobody has said it.
    """

    path: str
    columns: Sequence[str] | None = None
    schema: Path | None = None
    values_are_public: bool = False
    unit: Unit | None = None
    unit_column: str | None = None
    unit_names: NameRule | None = None

    def __post_init__(self) -> None:
        """Refuse a table of which nothing says which values are public."""
        if self.schema is None and not self.values_are_public:
            raise UserError(
                "which values occur in a private table is private too: give --schema with the values of each column "
                "from a public source, or say --values-are-public if the table's own values tell nobody anything"
            )

    def read(self) -> tuple[Schema, Table]:
        """Return the schema and the coded table.

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
        path = expand_path(self.path)
        schema = self._own_values(path) if self.schema is None else self._public_values()
        columns = Columns(label=schema.sources or None, unit=self.unit_column)
        layouts: dict[tuple[str, ...], tuple[Layout, list[str]]] = {}  # of each header, and who may own its rows
        codes, units, places = array("i"), list[str](), dict[tuple[str, str], str]()
        names = UnitNames(self.unit_names, "--unit-names ")
        nobody: DataError | None = None
        for where, row in read_records(path):
            header = tuple(row)
            if header not in layouts:
                layouts[header] = Columns().layout(header), columns.owners(header)
            usual, owners = layouts[header]
            made = (row.get(name) for name in (usual.text, str(usual.parse), usual.labels[0]))
            codes.extend(schema.codes(row, where, *(cell if isinstance(cell, str) else None for cell in made)))
            if self.unit is None:
                before = named_before(places, owners, row, where)
                if before is not None:
                    raise DataError(
                        f"another row of whom {before[0]!r} names in {line_of(before[1])}, and nothing says what is "
                        f"protected: give --unit user --unit-column {before[0]}, so that all rows of one "
                        "name are protected together, or --unit utterance, so that each row is protected by itself",
                        about=where,
                    )
            elif self.unit != "utterance":
                try:
                    name = names.read(row.get(self._owner), where, repr(self._owner))
                    units.append(sys.intern(name))  # one text for all rows of a unit
                except ValueError as error:
                    nobody = nobody or DataError(
                        f"{self._owner!r}, which says whose row this is, {error}; another column is named by "
                        "--unit-column",
                        about=where,
                    )
        if not layouts:
            raise DataError("it has no rows: give a table with at least two", about=self.path)
        self._refuse_missing(schema, columns, {name: None for header in layouts for name in header})
        if nobody is not None:
            raise nobody
        names.refuse_heavy(repr(self._owner), self.path)
        return schema, Table.of_units(codes, units if self.unit in ("dialogue", "user") else None, schema.sizes)

    def known(self, values: Mapping[str, Sequence[str]]) -> Schema:
        """Return the schema of a table without opening it: the file's, or that of values declared public before."""
        if self.schema is not None:
            return self._public_values()
        own = Schema(tuple(Column.of_values(name, values[name]) for name in values))
        return own.only(self.columns or list(values), self.path)

    def _public_values(self) -> Schema:
        assert self.schema is not None
        schema = Schema.read(self.schema)
        return schema if self.columns is None else schema.only(self.columns, self.schema)

    def _own_values(self, path: str) -> Schema:
        """The values of the table itself, read once more for them, and for its columns where none are given."""
        names = self.columns
        if names is None:
            known = list(dict.fromkeys(name for _, row in read_records(path) for name in row))
            owners = Columns(unit=self.unit_column).owners(known)
            names = [name for name in known if name not in owners]
        return Schema.of_rows(names, (row for _, row in read_records(path)))

    def _refuse_missing(self, schema: Schema, columns: Columns, present: Collection[str]) -> None:
        """Refuse a table of which no row has a column that is read."""
        usual, owner = Columns().layout(present), [] if self.unit in (None, "utterance") else [self._owner]
        of = {"words": usual.text, "label": usual.labels[0]}
        made = {of.get(c.made, str(usual.parse)): c for c in schema.columns if c.made is not None and c.source is None}
        for name in [*schema.sources, *sorted([*made, *owner])]:
            if name not in present:
                way = FILL if name in (column.source for column in schema.filled) else ""
                if name in owner:
                    way = ": name the column that says whose row it is by --unit-column"
                elif name in made:
                    names = " or ".join(map(repr, USUAL["text"])) if name == usual.text else "this name"
                    way = f": {made[name].name} is made of it (made: {made[name].made}), so call that column {names}"
                raise DataError(f"no row has a column {name!r} ({listed(present, columns)}){way}", about=self.path)

    @property
    def _owner(self) -> str:
        return self.unit_column or "unit"
