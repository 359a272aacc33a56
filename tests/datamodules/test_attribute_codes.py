"""Attributes of a row as one text: by this row and a public schema alone, in every form of file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from datamodules.reading.attribute_codes import AttributeCodes, labels_of
from datamodules.reading.columns import Columns, check_schema, codes_of, reference_columns
from datamodules.reading.examples import read_examples
from doppel.errors import DataError, UserError
from doppel.tables.made import make
from doppel.tables.schema import Column, Schema

SCHEMA = """
review_stars: {of: label2, values: ["1.0", "2.0"]}
length: {made: words, bins: [3, 6]}
act: {made: function, values: [CreateEvent, FindEvent]}
size: {made: calls, bins: [3]}
area: {made: label, values: [calendar, weather]}
"""
TREE = "(Yield (FindEvent (CreateEvent 1)))"


@pytest.fixture
def columns(tmp_path: Path) -> Columns:
    (tmp_path / "schema.yaml").write_text(SCHEMA)
    return Columns(attributes=str(tmp_path / "schema.yaml"))


def write(path: Path, rows: list[dict[str, object]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_code_has_every_attribute_in_the_order_of_the_schema_and_can_be_read_again(
    columns: Columns, tmp_path: Path
) -> None:
    rows: list[dict[str, object]] = [
        {"text": "a b c d", "label2": "Review Stars: 2.0", "parse": TREE, "label": "weather"},
        {"text": "a", "label2": "5.0", "label": "secret", "parse": None},
    ]
    full, other = (
        turn.label or "" for turn in read_examples(write(tmp_path / "a.jsonl", rows), "utterance", columns=columns)
    )
    assert full == "Review Stars: 2 | Length: 3 to under 6 | Act: FindEvent | Size: 3 or more | Area: weather"
    assert other == "Review Stars: other | Length: under 3 | Act: other | Size: other | Area: other"
    codes = codes_of(columns)
    assert codes is not None and codes.names == ["Review Stars", "Length", "Act", "Size", "Area"]
    assert codes.read(full) == [1, 1, 1, 1, 1] and codes.write(codes.read(other)) == other
    assert list(labels_of([full])) == codes.names
    assert codes.read_some("Area: weather | Length: under 3") == {4: 1, 1: 0}
    for part in ("Review Stars: 9", "review stars: 2"):
        with pytest.raises(DataError, match="Review Stars: 1, Review Stars: 2, Review Stars: other$"):
            codes.read_some(part)
    for code in ("Length: under 3", "secret"):
        with pytest.raises(DataError, match="does not have the attributes") as error:
            codes.read(code)
        assert code not in str(error.value)


def test_a_row_more_changes_the_code_of_no_other_row(columns: Columns, tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"text": "a b " * i, "label2": f"{i}.0", "label": "weather"} for i in range(1, 6)]
    alone = [turn.label for turn in read_examples(write(tmp_path / "a.jsonl", rows), "utterance", columns=columns)]
    more = [{"text": "one more", "label2": "7.0"}, *rows]
    assert [t.label for t in read_examples(write(tmp_path / "b.jsonl", more), "utterance", columns=columns)][
        1:
    ] == alone


def test_every_form_is_read_alike(tmp_path: Path) -> None:
    (tmp_path / "schema.yaml").write_text("length: {made: words, bins: [3]}\narea: {made: label, values: [calendar]}\n")
    columns = Columns(attributes=str(tmp_path / "schema.yaml"))
    turns = [{"user_utterance": {"original_text": "a b"}, "lispress": TREE, "tags": {"domain": "calendar"}}]
    dialogues = write(tmp_path / "d.jsonl", [{"dialogue_id": "1", "turns": turns}])
    assert read_examples(dialogues, "utterance", columns=columns)[0].label == "Length: under 3 | Area: calendar"
    (tmp_path / "t.txt").write_text("a b\n")
    assert (
        read_examples(str(tmp_path / "t.txt"), "utterance", columns=columns)[0].label == "Length: under 3 | Area: other"
    )
    found = {turn.label for turn in read_examples("embedded:train?num=200", "utterance", columns=columns)}
    assert found >= {"Length: 3 or more | Area: calendar", "Length: 3 or more | Area: other"}


def test_a_private_file_without_a_column_is_refused_and_a_reference_has_no_attributes(
    columns: Columns, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.jsonl", [{"text": "secret words", "label": "weather"}])
    with pytest.raises(DataError, match="no row has a column 'label2', of which the attribute 'review_stars'") as error:
        read_examples(path, "utterance", columns=columns)
    assert "secret" not in str(error.value)
    with pytest.raises(DataError, match="'label2'"):
        read_examples("embedded:train?num=9", "utterance", columns=columns)
    assert read_examples(path, "utterance", columns=reference_columns(columns))[0].label == "weather"


def test_a_reference_needs_no_column_that_a_model_was_to_fill(tmp_path: Path) -> None:
    schema = tmp_path / "schema.yaml"
    schema.write_text("mood: {made: model, by: models/base, values: [calm, angry]}\nlength: {made: words, bins: [3]}\n")
    path = write(tmp_path / "a.jsonl", [{"text": "what people say", "label": "weather"}])
    columns = reference_columns(Columns(attributes=str(schema)))
    assert read_examples(path, "utterance", columns=columns)[0].label == "weather"
    assert read_examples("embedded:train?num=9", "utterance", columns=columns)
    filled = write(tmp_path / "b.jsonl", [{"text": "what people say", "mood": "calm"}])
    assert read_examples(filled, "utterance", columns=columns)[0].label == "Mood: calm | Length: 3 or more"


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ((Column.of_values("1st", ["a"]),), "cannot be read in a prompt"),
        ((Column.of_values("kind", ["a | Stars: 5"]),), "cannot be read in a prompt"),
        ((Column.of_values("kind", ["Stars: 5"]),), "cannot be read in a prompt"),
        ((Column.of_values("a_b", ["x"]), Column.of_values("a b", ["x"])), "two attributes have one name"),
    ],
)
def test_names_that_could_not_be_read_again_are_refused(columns: tuple[Column, ...], why: str) -> None:
    with pytest.raises(DataError, match=why):
        AttributeCodes(Schema(columns))


def test_a_schema_that_is_not_there_is_told_before_anything_is_read() -> None:
    with pytest.raises(UserError, match="attributes.schema is none.yaml"):
        check_schema("none.yaml")


def test_a_tree_that_is_none_makes_nothing() -> None:
    assert make("calls", (), "a", "(Yield", None) is None and make("function", ("Yield",), "a", None, None) is None
    assert make("function", ("CreateEvent",), None, TREE, None) == "CreateEvent"
    assert make("words", (), " two  words ", None, None) == 2
