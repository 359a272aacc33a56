"""Conversations in OpenAI's form, one a line: what their users said, and whose it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from datamodules.dialogue_data_module import DialogueDataModule
from datamodules.guards.check import check
from datamodules.guards.overlap import overlapping
from datamodules.reading.columns import Columns, ReferenceColumns
from datamodules.reading.example import Unit
from datamodules.reading.examples import read_examples
from datamodules.training_rows import TrainingRows
from doppel.errors import DataError

COLUMNS = Columns(messages="messages")


def line(*said: str | list[Any] | None, **others: Any) -> dict[str, Any]:
    """A conversation in which a model answers each message."""
    answer = {"role": "assistant", "content": "certainly"}
    turns = [turn for text in said for turn in ({"role": "user", "content": text}, answer)]
    return {"messages": [{"role": "system", "content": "be kind"}, *turns], **others}


def write(path: Path, *lines: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return str(path)


FILE = [line("where is it", "the blue one", user=7), line("stop it", user=8), line(user=8)]


@pytest.mark.parametrize(
    ("unit", "columns", "units"),
    [
        ("utterance", COLUMNS, [0, 1, 2]),
        ("dialogue", COLUMNS, [0, 0, 1]),
        ("user", Columns(messages="messages", unit="user"), [0, 0, 1]),
        (None, COLUMNS, [0, 0, 1]),
        (None, Columns(messages="messages", unit="user"), [0, 0, 1]),
    ],
)
def test_what_users_say_is_read_and_whose_it_is(
    unit: Unit | None, columns: Columns, units: list[int], tmp_path: Path
) -> None:
    """A conversation, or the user whose column is named, is the unit where nobody says it."""
    path = write(tmp_path / "a.jsonl", *FILE)
    found = read_examples(path, unit, columns=columns)
    protected = unit or ("dialogue" if columns.unit is None else "user")
    assert DialogueDataModule(path, unit=unit, columns=columns).unit == protected
    assert check(path, unit, columns=columns).num_units == len(set(units))
    rows = TrainingRows.from_config({"train_path": path, "unit": unit, "columns": columns.as_dict()})
    assert rows.unit == protected and [turn.unit for turn in rows.read()] == [turn.unit for turn in found]
    assert [turn.utterance for turn in found] == ["where is it", "the blue one", "stop it"]
    assert [list(dict.fromkeys(turn.unit for turn in found)).index(turn.unit) for turn in found] == units


def test_parts_of_a_message_are_one_text_and_a_picture_is_none(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "what is"}, {"type": "image_url"}, {"type": "text", "text": "this"}]
    path = write(tmp_path / "a.jsonl", line(parts, [{"type": "image_url"}], None, "more"))
    assert [turn.utterance for turn in read_examples(path, "dialogue", columns=COLUMNS)] == ["what is\nthis", "more"]


def test_a_conversation_more_moves_no_other_one(tmp_path: Path) -> None:
    """Neighbours: the others say the same under the same names, by which ``keep_share`` chooses; equal ones are two."""
    lines = [*FILE, line("stop it", user=8), line("new", "newer", user=9)]

    def named(*lines: dict[str, Any]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for turn in read_examples(write(tmp_path / "a.jsonl", *lines), "dialogue", columns=COLUMNS):
            found.setdefault(turn.unit, []).append(turn.utterance)
        return found

    every = named(*lines)
    assert list(every.values()) == [["where is it", "the blue one"], ["stop it"], ["stop it"], ["new", "newer"]]
    for place, one in enumerate(lines):
        rest = named(*lines[:place], *lines[place + 1 :])
        assert rest.items() <= every.items() and len(rest) == 4 - (one is not FILE[2])


@pytest.mark.parametrize(
    ("lines", "unit", "columns", "told"),
    [
        (FILE, "utterance", Columns(), "data.columns.messages=messages"),
        (FILE, "user", COLUMNS, "data.columns.unit"),
        (
            [*FILE, line("wait", user=7)],
            None,
            COLUMNS,
            "set data.columns.unit=user, .*data.unit=dialogue, so that each con",
        ),
        ([{"messages": "hello"}], "dialogue", COLUMNS, "is a text, not a list"),
        ([{"text": "hello"}], "dialogue", COLUMNS, "no 'messages'"),
        ([{"messages": ["hello"]}], "dialogue", COLUMNS, 'message 0: no "role" and "content"'),
        ([line(5)], "dialogue", COLUMNS, '"content" is'),  # type: ignore[arg-type]
    ],
)
def test_other_forms_are_refused_with_the_way_out(
    lines: list[dict[str, Any]], unit: Unit | None, columns: Columns, told: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=told):
        read_examples(write(tmp_path / "a.jsonl", *lines), unit, columns=columns)


def test_columns_without_blanks_behind_their_colons_say_so() -> None:
    with pytest.raises(DataError, match="with a blank behind each colon"):
        Columns.from_config({"columns": {"messages:talk": None}})  # as YAML reads {messages:talk}


def test_a_column_of_text_beside_messages_is_refused_and_a_reference_may_be_of_either_form(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="leave one of them out"):
        Columns.from_config({"columns": {"messages": "messages", "text": "text"}})
    reference = ReferenceColumns(messages="messages")
    for lines in (FILE, [{"text": "where is it"}]):
        found = read_examples(write(tmp_path / "r.jsonl", *lines), "utterance", columns=reference)
        assert found[0].utterance == "where is it"


def test_a_reference_that_says_what_a_private_conversation_says_is_found(tmp_path: Path) -> None:
    said = [f"please find the parcel number {word} that i sent" for word in "abcdefghij"]
    private = write(tmp_path / "a.jsonl", *(line(text, user=1) for text in said))
    public = tmp_path / "r.txt"
    public.write_text("\n".join(said))
    assert overlapping(str(public), ReferenceColumns(messages="messages"), [(private, COLUMNS)]) is not None


@pytest.mark.parametrize("unit", ["dialogue", "utterance", "user", None])
def test_a_column_of_users_that_no_conversation_has_is_refused(unit: Unit | None, tmp_path: Path) -> None:
    """Else a column with a typing error would protect conversations, where their users were meant."""
    path = write(tmp_path / "a.jsonl", *FILE)
    with pytest.raises(DataError, match="'usr'"):
        read_examples(path, unit, columns=Columns(messages="messages", unit="usr"))
