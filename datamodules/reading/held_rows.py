"""Rows that a program holds, as the file of JSON lines that they are read from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from doppel.errors import DataError

if TYPE_CHECKING:
    import pandas as pd


def as_json_lines(rows: pd.DataFrame | Iterable[Mapping[str, Any]]) -> str:
    """Return rows as JSON lines, equal rows as equal lines: what is missing is null, a date is a text.

    Args:
        rows: A frame, or a mapping for each row, by column.

    Raises:
        DataError: They are neither, or a value has no form in JSON; the message never quotes one.
    """
    import pandas as pd

    if not isinstance(rows, pd.DataFrame):
        listed = list(rows) if isinstance(rows, Iterable) and not isinstance(rows, str | bytes) else []
        wrong = next((number for number, row in enumerate(listed, 1) if not isinstance(row, Mapping)), None)
        if wrong is not None or not listed:
            what = "no row" if wrong is None else f"no column names in row {wrong}"
            raise DataError(f"{what}: give a pandas DataFrame, or a list of dicts of columns", about="data")
        rows = pd.DataFrame(listed, dtype=object)
    try:
        text = rows.to_json(orient="records", lines=True, force_ascii=False, date_format="iso")
    except (ValueError, TypeError, OverflowError, RecursionError):  # whose messages quote values
        raise DataError(
            "a column twice, or a value that is no text, number, date or list of these: convert it", about="data"
        ) from None
    return str(text)
