"""Tables of an API: what is read, and what is refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from doppel.errors import UserError
from doppel.lispress.api_table import read_api_names
from doppel.lispress.names import Signature


def test_a_function_takes_what_its_longest_overload_takes(tmp_path: Path) -> None:
    path = tmp_path / "api.csv"
    path.write_text(
        "size,Number,of: List[Event],unit: String\nsize,Number,of: Day\nToday,Date\nEvent.subject,String,obj: Event\n"
    )
    names = read_api_names([path])
    assert names.functions == {"size", "Today", "Event.subject", "Event.subject_?", "do"}
    assert names.signatures["size"] == Signature(1, 2, frozenset({":of", ":unit"}))
    assert names.signatures["Today"] == Signature(0, 0, frozenset())
    assert dict(names.types) == {"Number": 0, "Event": 0, "List": 1, "String": 0, "Day": 0, "Date": 0}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("", "names no function"),
        ("Today", "line 1: expected 'name,return type"),
        ("To day,Date", "line 1: expected 'name,return type"),
        ("Today,Date\nFind,Event,constraint", "line 2: expected 'argument: type'"),
        ("Find,List[Event", "no type such as"),
        ("Find,List[Event]]", "no type such as"),
        ("Find,List[]", "no type such as"),
    ],
)
def test_bad_tables_are_named_with_their_line(tmp_path: Path, table: str, message: str) -> None:
    path = tmp_path / "api.csv"
    path.write_text(table)
    with pytest.raises(UserError, match="api.csv") as caught:
        read_api_names([str(path)])
    assert message in str(caught.value)
    with pytest.raises(UserError, match=r"none\.csv"):
        read_api_names([str(tmp_path / "none.csv")])
