"""Rows of a program as the lines of a file."""

from __future__ import annotations

import datetime
import json

import numpy as np
import pandas as pd
import pytest

from datamodules.reading.held_rows import as_json_lines
from doppel.errors import DataError

ROWS = [{"text": "hello 😀\n", "user": 7, "day": datetime.date(2024, 1, 2)}, {"text": None}, {"turns": [{"a": 1}]}]


def test_rows_are_lines_of_json_in_which_nothing_is_lost() -> None:
    first, second, third = (json.loads(line) for line in as_json_lines(ROWS).splitlines())
    assert first["text"] == "hello 😀\n" and first["user"] == 7 and first["day"].startswith("2024-01-02")
    assert second["text"] is None and second["user"] is None and third["turns"] == [{"a": 1}]
    frame = pd.DataFrame({"text": ["a", "b"], "user": np.array([1, 2])})
    assert (
        as_json_lines(frame)
        == as_json_lines(frame.to_dict("records"))
        == as_json_lines(frame.set_index("user", drop=False))
    )


@pytest.mark.parametrize(
    "rows",
    [["secret"], [], "secret", 3, pd.DataFrame([["secret", 2]], columns=["a", "a"]), [{"a": "secret \ud83d"}]],
    ids=str,
)
def test_what_is_no_row_is_refused_without_its_content(rows: object) -> None:
    with pytest.raises(DataError, match="^data: ") as refused:
        as_json_lines(rows)  # type: ignore[arg-type]
    assert "secret" not in str(refused.value)
