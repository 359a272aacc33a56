"""The public values of each column of a table, and how a row is read by them."""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from doppel.errors import DataError
from doppel.files import read_yaml
from doppel.tables.made import ASK, MADE, NUMBERS, OF_TREE, Made, make

#: What a cell is read as that has none of the public values.
OTHER = "other"
#: A column with more values than these is no attribute, but free text, a name or a number without bins.
MAX_VALUES = 256

_WAY = "give each column its values, as `stars: [1, 2, 3]`, or the bounds of its bins, as `words: {bins: [5, 10]}`"


@dataclass(frozen=True)
class Column:
    """A column and what its cells may say.

    Attributes:
        name: Of the attribute.
        values: What a cell is read as, :data:`OTHER` the last one.
        bins: Bounds between the values of a column of numbers, in their order; empty for a column of words.
        of: Column of the table, where it has another name.
        made: What the value is made of, in place of a cell of the table.
        by: Folder of the model that it is made by.
        ask: What the model is asked: words before the value, ``{text}`` where the text stands.
    """

    name: str
    values: tuple[str, ...]
    bins: tuple[float, ...] = ()
    of: str | None = None
    made: Made | None = None
    by: str | None = None
    ask: str | None = None

    @classmethod
    def of_bins(cls, name: str, bins: Sequence[float]) -> Column:
        """Build a column of numbers, of which a cell is read as the bin that its number is in."""
        words = [f"{bound:g}" for bound in bins]
        if len(set(words)) < len(words):  # else they stay as they are: whatever was released has their names
            words = [repr(float(bound)).removesuffix(".0") for bound in bins]
        inner = [f"{low} to under {high}" for low, high in zip(words, words[1:], strict=False)]
        return cls(name, (f"under {words[0]}", *inner, f"{words[-1]} or more", OTHER), tuple(bins))

    @classmethod
    def of_values(cls, name: str, values: Iterable[str]) -> Column:
        """Build a column of words."""
        return cls(name, (*(value for value in values if value != OTHER), OTHER))

    @property
    def source(self) -> str | None:
        """Column of the table that it is read of; None where it is made of the request itself."""
        return (self.of or self.name) if self.made in (None, "model") else None

    def code(self, cell: object) -> int:
        """Place of the value that a cell is read as: a function of this cell and of the schema alone.

        A cell may name itself: ``Review Stars: 5.0`` is read as ``5.0`` where that is a value and the whole is none.

        Raises:
            ValueError: The cell is a list or an object.
        """
        if isinstance(cell, list | dict):
            raise ValueError("is no single value: give a text or a number")
        if self.bins:
            number = _number(cell)
            return len(self.values) - 1 if number is None else bisect.bisect_right(self.bins, number)
        word = as_word(cell)
        found = next((read for read in (word, word.partition(": ")[2]) if read in self.values), OTHER)
        return self.values.index(found)


@dataclass(frozen=True)
class Schema:
    """The columns of a table that rows are made of.

    Attributes:
        columns: In the order of the rows that are written.
    """

    columns: tuple[Column, ...]

    @classmethod
    def read(cls, path: Path) -> Schema:
        """Read a YAML file: attribute → list of its values, or ``{bins: [bounds]}`` for numbers.

        ``{of: COLUMN, values: […]}`` is read of a column with another name; ``{made: words, bins: […]}`` of no column,
        but of the request (:data:`~doppel.tables.made.Made`); ``{made: model, by: FOLDER, values: […]}`` of a column
        that a model has filled.

        Raises:
            DataError: The file cannot be read, or says something else; the message names the line or the column.
        """
        content = read_yaml(path)
        if not isinstance(content, dict) or not content:
            raise DataError(f"has no columns: {_WAY}", about=path)
        return cls(tuple(_column(str(name), entry, path) for name, entry in content.items()))

    @classmethod
    def of_rows(cls, names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Schema:
        """Build a schema of the values of a table itself, which somebody has declared public.

        Raises:
            DataError: A column has more than :data:`MAX_VALUES` values.
        """
        found: dict[str, dict[str, None]] = {name: {} for name in names}
        for row in rows:
            for name, seen in found.items():
                cell = row.get(name)
                if cell is not None and not isinstance(cell, list | dict):
                    seen[as_word(cell)] = None
                if len(seen) > MAX_VALUES:
                    raise DataError(
                        f"it has more than {MAX_VALUES} values, too many for an attribute: leave it out of --columns, "
                        "or give --schema with its most frequent values, or with bins",
                        about=f"column {name!r}",
                    )
        return cls(tuple(Column.of_values(name, sorted(seen)) for name, seen in found.items()))

    def only(self, names: Sequence[str], about: object) -> Schema:
        """Return the schema of some of its columns, in the order asked for.

        Raises:
            DataError: It has no column of a name, or a name comes twice.
        """
        by_name = {column.name: column for column in self.columns}
        for place, name in enumerate(names):
            if name not in by_name or name in names[:place]:
                what = "comes twice in --columns" if name in by_name else "is not in the schema"
                raise DataError(f"column {name!r} {what}; it has {', '.join(by_name)}", about=about)
        return Schema(tuple(by_name[name] for name in names))

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return [column.name for column in self.columns]

    @property
    def sources(self) -> list[str]:
        """Columns that a table must have."""
        return [column.source for column in self.columns if column.source is not None]

    @property
    def filled(self) -> list[Column]:
        """Columns that a model fills."""
        return [column for column in self.columns if column.made == "model"]

    @property
    def needs_trees(self) -> bool:
        """Whether an attribute is made of the tree."""
        return any(column.made in OF_TREE for column in self.columns)

    @property
    def needs_label(self) -> bool:
        """Whether an attribute is made of the label."""
        return any(column.made == "label" for column in self.columns)

    @property
    def sizes(self) -> list[int]:
        """Values of each column, :data:`OTHER` included."""
        return [len(column.values) for column in self.columns]

    def codes(
        self,
        row: Mapping[str, Any],
        where: str,
        text: str | None = None,
        tree: str | None = None,
        label: str | None = None,
    ) -> list[int]:
        """Return places of the values that a row is read as; a cell that is missing, empty or unknown is :data:`OTHER`.

        Args:
            row: Its cells.
            where: Its place, for errors.
            text: What was said, of which attributes may be made; likewise ``tree`` and ``label``.

        Raises:
            DataError: A cell is a list or an object; the message names line and column, and does not quote the cell.
        """
        codes = []
        for column in self.columns:
            try:
                made, source = column.made, column.source
                if made is None or source is not None:
                    cell = row.get(str(source))
                else:
                    cell = make(made, column.values, text, tree, label)
                codes.append(column.code(cell))
            except ValueError as error:
                raise DataError(str(error), about=f"{where}, column {column.name!r}") from None
        return codes

    def made_of(self) -> dict[str, str]:
        """Return what attributes are read of, ready for JSON: those of columns with another name, or of the request."""
        return {column.name: str(column.made or column.of) for column in self.columns if column.made or column.of}

    def as_dict(self) -> dict[str, list[str]]:
        """Return values by column, ready for JSON."""
        return {column.name: list(column.values) for column in self.columns}


def as_word(cell: object) -> str:
    """Read a cell as a word, by :func:`plain`; nothing is :data:`OTHER`."""
    if cell is None or cell != cell:  # NaN, which a table of numbers has in place of nothing
        return OTHER
    return plain(str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)) or OTHER


@lru_cache(maxsize=4096)  # labels are few, and each is that of many rows
def plain(label: str) -> str:
    """Normalise a label across formats of files: 5.0 is ``5``, True is ``true``, without blanks around it.

    Args:
        label: A value, or several that name themselves, as ``Category: Food | Stars: 5.0``.
    """
    label = re.sub(r"(^|: )([-+]?\d+)\.0+(?= \| |$)", r"\1\2", label.strip())
    return re.sub(r"(?i)(^|: )(true|false)(?= \| |$)", lambda said: said[0].lower(), label)


def _number(cell: object) -> float | None:
    try:
        number = float(cell)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return None if math.isnan(number) else number


def _column(name: str, entry: object, path: Path) -> Column:
    about = f"{path}, column {name!r}"
    given = entry if isinstance(entry, dict) else {"values": entry}
    made, of = given.get("made"), given.get("of")
    if not given.keys() <= {"values", "bins", "made", "of", "by", "ask"} or (("bins" in given) == ("values" in given)):
        raise DataError(f"its values are missing: {_WAY}", about=about)
    if made is not None and made not in MADE:
        raise DataError(f"it is made of {made!r}: give {', '.join(MADE)}", about=about)
    if made is not None and (of is not None or (made in NUMBERS) != ("bins" in given)):
        what = "bins" if made in NUMBERS else "values"
        raise DataError(f"it is made of {made}: give it {what}, and no column with `of`", about=about)
    by: Any = given.get("by")
    ask = given.get("ask", ASK % name.replace("_", " ").capitalize())
    if (made == "model") != isinstance(by, str) or ("ask" in given and by is None):
        raise DataError("`by` names the model that a value is made by: give made: model and by: FOLDER", about=about)
    if not isinstance(ask, str) or ask.count("{text}") != 1 or ask.endswith(" "):
        raise DataError("it asks nothing: give `ask` words with one {text}, and no blank at their end", about=about)
    if of is not None and not isinstance(of, str):
        raise DataError(f"its column is {of!r}: give the name of one", about=about)
    column = _of_bins(name, given["bins"], about) if "bins" in given else _of_values(name, given["values"], about)
    return replace(column, of=of, made=made, by=by, ask=None if by is None else ask)


def _of_bins(name: str, entry: object, about: str) -> Column:
    bins = [_number(bound) for bound in entry] if isinstance(entry, list) else []
    known = [bound for bound in bins if bound is not None and math.isfinite(bound)]
    if not bins or len(known) < len(bins) or sorted(set(known)) != known:
        raise DataError("its bins are no rising numbers: give the bounds between bins, as [5, 10, 20]", about=about)
    return Column.of_bins(name, known)


def _of_values(name: str, entry: object, about: str) -> Column:
    if isinstance(entry, list) and any(isinstance(value, dict) for value in entry):
        raise DataError('write a value with a colon and a blank in quotes, as ["Re: order"]', about=about)
    if not isinstance(entry, list) or not entry or any(isinstance(value, list) for value in entry):
        raise DataError(f"its values are missing: {_WAY}", about=about)
    words = [as_word(value) for value in entry]
    if len(set(words)) < len(words):
        raise DataError("a value comes twice: give every value once", about=about)
    if len(words) > MAX_VALUES:
        raise DataError(f"it has {len(words)} values: give the {MAX_VALUES} that matter, or bins", about=about)
    return Column.of_values(name, words)
