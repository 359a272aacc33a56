"""The public values of columns, and how cells are read by them."""

from __future__ import annotations

from pathlib import Path

import pytest

from doppel.errors import DataError
from doppel.tables.schema import Column, Schema

YAML = "stars: [1, 2, 3.0]\nwords: {bins: [5, 10]}\nopen: [yes, no]\n"


@pytest.fixture
def schema(tmp_path: Path) -> Schema:
    path = tmp_path / "schema.yaml"
    path.write_text(YAML)
    return Schema.read(path)


def test_cells_are_read_as_public_values_and_else_as_other(schema: Schema) -> None:
    assert schema.as_dict() == {
        "stars": ["1", "2", "3", "other"],
        "words": ["under 5", "5 to under 10", "10 or more", "other"],
        "open": ["yes", "no", "other"],
    }
    assert schema.sizes == [4, 4, 3]
    row = {"stars": " 2 ", "words": "5", "open": "yes"}
    assert schema.codes(row, "t.csv:2") == [1, 1, 0]
    assert schema.codes({"stars": 3, "words": 4.9, "open": "maybe"}, "t.csv:3") == [2, 0, 2]
    assert schema.codes({"stars": 7, "words": "many"}, "t.csv:4") == [3, 3, 2]
    assert schema.codes({"stars": "", "words": None, "open": None}, "t.csv:5") == [3, 3, 2]
    assert schema.codes({"words": "1e400"}, "t.csv:6") == [3, 2, 2]


def test_bins_of_many_digits_keep_their_names_apart() -> None:
    days = Column.of_bins("day", [20240102, 20240103, 20240104])
    assert days.values[1:3] == ("20240102 to under 20240103", "20240103 to under 20240104")
    assert [days.code(day) for day in (20240101, 20240102, 20240103.5, 20240109)] == [0, 1, 2, 3]
    assert Column.of_bins("price", [0.5, 1e6, 2.5]).values[:2] == ("under 0.5", "0.5 to under 1e+06")
    assert Column.of_bins("id", [1234567, 9e6]).values[0] == "under 1.23457e+06", "a run that has released it goes on"


def test_a_cell_that_is_no_single_value_is_named_by_line_and_column_and_not_quoted(schema: Schema) -> None:
    with pytest.raises(DataError, match=r"t.jsonl:7, column 'stars': is no single value") as error:
        schema.codes({"stars": ["secret"]}, "t.jsonl:7")
    assert "secret" not in str(error.value)


def test_columns_are_chosen_in_the_order_asked_for(schema: Schema) -> None:
    assert schema.only(["open", "stars"], "s.yaml").names == ["open", "stars"]
    for names, why in (["color"], "is not in the schema"), (["open", "open"], "comes twice"):
        with pytest.raises(DataError, match=f"s.yaml: column '{names[0]}' {why}"):
            schema.only(names, "s.yaml")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("stars: [1, 2\nwords: 3\n", r":2: is no YAML"),
        ("", r": has no columns"),
        ("[1, 2]", r": has no columns"),
        ("stars: 5", r", column 'stars': its values are missing"),
        ("stars: []", r", column 'stars': its values are missing"),
        ("stars: [[1], 2]", r", column 'stars': its values are missing"),
        ("stars: [1, 1.0]", r", column 'stars': a value comes twice"),
        ("words: {bins: [5, 5]}", r", column 'words': its bins are no rising numbers"),
        ("words: {bins: [5, many]}", r", column 'words': its bins are no rising numbers"),
        ("words: {bins: []}", r", column 'words': its bins are no rising numbers"),
        ("mood: {made: model, values: [a]}", r", column 'mood': `by` names the model"),
        ("mood: {by: models/base, values: [a]}", r", column 'mood': `by` names the model"),
        ("mood: {made: model, by: m, bins: [1]}", r", column 'mood': it is made of model: give it values"),
        ("mood: {made: model, by: m, values: [a], ask: 'The mood:'}", r", column 'mood': it asks nothing"),
        (f"name: {list(range(300))}", r", column 'name': it has 300 values"),
    ],
)
def test_what_is_no_schema_is_refused_by_its_place(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "schema.yaml"
    path.write_text(text)
    with pytest.raises(DataError, match=f"schema.yaml{why}"):
        Schema.read(path)


def test_a_schema_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file .*none.yaml"):
        Schema.read(tmp_path / "none.yaml")


def test_a_tables_own_values_make_a_schema_but_for_names_and_free_text() -> None:
    rows = [{"kind": "b", "size": 2.0}, {"kind": "a"}, {"kind": None, "size": "2"}]
    assert Schema.of_rows(["kind", "size"], rows).as_dict() == {"kind": ["a", "b", "other"], "size": ["2", "other"]}
    with pytest.raises(DataError, match="column 'text': it has more than 256 values"):
        Schema.of_rows(["text"], [{"text": str(number)} for number in range(300)])


def test_a_value_called_other_is_no_second_one() -> None:
    assert Column.of_values("kind", ["other", "a"]).values == ("a", "other")
