"""Files become turns, and every bad file an error that says what, where and how to mend it."""

from __future__ import annotations

import gzip
import json
import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from datamodules.reading.examples import read_examples
from doppel.errors import DataError
from doppel.lispress import is_valid

GOOD = {"utterance": "hi", "parse": "(Hello)", "unit": "u1"}
SECRET = "zebra"


def test_all_user_turns_are_read_skipped_ones_too(dialogues: str) -> None:
    turns = read_examples(dialogues, "dialogue")
    records = [json.loads(line) for line in Path(dialogues).read_bytes().splitlines()]
    expected = [
        (t["user_utterance"]["original_text"], t["lispress"], r["dialogue_id"], t["tags"]["domain"])
        for r in records
        for t in r["turns"]
    ]
    assert [(t.utterance, t.parse, t.unit, t.label) for t in turns] == expected


def test_utterance_units_are_distinct_and_named_by_dialogue_and_turn(dialogues: str) -> None:
    units = [t.unit for t in read_examples(dialogues, "utterance")]
    assert len(set(units)) == len(units)
    assert units[:3] == ["d0/0", "d1/0", "d1/1"]


def test_compressed_files_read_like_plain_ones(dialogues: str, tmp_path: Path) -> None:
    content = Path(dialogues).read_bytes()
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(content))
    with zipfile.ZipFile(tmp_path / "a.jsonl.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.jsonl", content)
        archive.writestr("__MACOSX/._a.jsonl", b"\0")
    turns = read_examples(dialogues, "dialogue")
    assert read_examples(str(tmp_path / "a.jsonl.gz"), "dialogue") == turns
    assert read_examples(str(tmp_path / "a.jsonl.zip"), "dialogue") == turns


def test_plain_lines(write_lines: Callable[..., str]) -> None:
    path = write_lines([GOOD, "", {"utterance": "bye", "unit": "u1", "label": "small talk"}])
    first, second = read_examples(path, "dialogue")
    assert (first.utterance, first.parse, first.unit, first.label) == ("hi", "(Hello)", "u1", None)
    assert (second.parse, second.unit, second.label) == (None, "u1", "small talk")


def test_plain_lines_are_units_of_their_own_when_the_unit_is_the_utterance(
    write_lines: Callable[..., str],
) -> None:
    turns = read_examples(write_lines([GOOD, GOOD, {"utterance": "a"}, {"utterance": "b"}]), "utterance")
    assert len({t.unit for t in turns}) == 4


@pytest.mark.parametrize(
    ("bad", "place"),
    [
        (f'{{"utterance": "{SECRET}"', ":3"),
        (f'["{SECRET}"]', ":3"),
        (
            {"utterance": SECRET, "parse": f'(Find "{SECRET}"', "unit": "u"},
            ":3",
        ),
        ({"utterance": SECRET, "parse": "", "unit": "u"}, ":3"),
        ({"utterance": SECRET, "parse": "(Hello)"}, ":3"),
        ({"parse": "(Hello)", "unit": SECRET}, ":3"),
        ({"utterance": SECRET, "parse": [SECRET], "unit": "u"}, ":3"),
        ({"turns": []}, ":3"),
        ({"dialogue_id": SECRET, "turns": SECRET}, ":3"),
        ({"dialogue_id": SECRET, "turns": [{"lispress": "(A)"}]}, ":3, turn 0"),
        (
            {
                "dialogue_id": "d",
                "turns": [{"user_utterance": {"original_text": SECRET}, "lispress": f"({SECRET}"}],
            },
            ":3, turn 0",
        ),
        ("[" * 100_000, ":3"),
    ],
)
def test_a_bad_line_is_named_and_never_quoted(write_lines: Callable[..., str], bad: object, place: str) -> None:
    path = write_lines([GOOD, "", bad, GOOD])
    with pytest.raises(DataError) as raised:
        read_examples(path, "dialogue")
    message = str(raised.value)
    assert raised.value.about == path + place
    assert SECRET not in message
    assert "\n" not in message
    assert message.removeprefix(raised.value.about).count(":") > 1, "says how to mend it"


def test_a_line_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "latin.jsonl"
    path.write_bytes('{"utterance": "café"}\n'.encode("latin-1"))
    with pytest.raises(DataError, match="UTF-8") as raised:
        read_examples(str(path), "utterance")
    assert raised.value.about == f"{path}:1"


def test_a_label_that_is_needed_is_missing_in_a_line_or_has_no_column(write_lines: Callable[..., str]) -> None:
    path = write_lines([{"utterance": SECRET, "label": None}])
    with pytest.raises(DataError, match="no 'label', which is needed here: add one, drop the line") as raised:
        read_examples(path, "utterance", needs=("label",))
    assert raised.value.about == f"{path}:1"
    path = write_lines([{"utterance": SECRET, "kind": "banks"}])
    way = r"no 'label', which is needed here: name its column as data\.columns\.label, add one"
    with pytest.raises(DataError, match=way) as raised:
        read_examples(path, "utterance", needs=("label",))
    assert SECRET not in str(raised.value) and "banks" not in str(raised.value)


def test_a_missing_file_says_what_to_put_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.jsonl.*docs/reproduce\.md"):
        read_examples(str(tmp_path / "nowhere.jsonl"), "utterance")


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_an_empty_file(tmp_path: Path, content: str) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text(content)
    with pytest.raises(DataError, match=r"empty\.jsonl"):
        read_examples(str(path), "utterance")


def test_dialogues_without_trees_are_turns_for_what_needs_none(write_lines: Callable[..., str]) -> None:
    turns = [{"user_utterance": {"original_text": text}, "lispress": tree} for text, tree in (("a", None), ("b", "("))]
    path = write_lines([{"dialogue_id": "d", "turns": turns[:1]}])
    assert [(turn.utterance, turn.parse) for turn in read_examples(path, "dialogue")] == [("a", None)]
    with pytest.raises(DataError, match="no 'lispress'") as refused:
        read_examples(path, "dialogue", needs=("parse",))
    assert refused.value.about == f"{path}:1"
    broken = write_lines([{"dialogue_id": "d", "turns": turns}], "broken.jsonl")
    assert [turn.utterance for turn in read_examples(broken, "dialogue", with_trees=False)] == ["a", "b"]


def test_a_torn_compressed_file(tmp_path: Path) -> None:
    lines = b"".join(b'{"utterance": "%d"}\n' % i for i in range(1000))
    path = tmp_path / "data.jsonl.gz"
    path.write_bytes(gzip.compress(lines)[:-200])
    with pytest.raises(DataError) as raised:
        read_examples(str(path), "utterance")
    assert re.fullmatch(rf"{re.escape(str(path))}:\d+", raised.value.about)


def test_a_zip_with_two_files(tmp_path: Path) -> None:
    path = tmp_path / "two.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.jsonl", "")
        archive.writestr("b.jsonl", "")
    with pytest.raises(DataError, match=r"two\.zip"):
        read_examples(str(path), "utterance")


def test_the_embedded_grammar_is_a_function_of_its_path() -> None:
    turns = read_examples("embedded:train?num=50&seed=3&skew=1.0", "utterance")
    assert len(turns) == len({t.unit for t in turns}) == 50
    assert turns == read_examples("embedded:train?num=50&seed=3&skew=1.0", "utterance")
    assert turns != read_examples("embedded:train?num=50&seed=4&skew=1.0", "utterance")
    assert all(is_valid(t.parse or "") for t in turns)


@pytest.mark.parametrize(
    ("path", "argument"),
    [
        ("embedded:train?size=5", "size"),
        ("embedded:train?num=many", "num"),
        ("embedded:train?num=0", "num"),
    ],
)
def test_bad_arguments_of_the_embedded_grammar(path: str, argument: str) -> None:
    with pytest.raises(DataError) as raised:
        read_examples(path, "utterance")
    assert raised.value.about == path
    assert argument in str(raised.value).removeprefix(path)


def test_an_unknown_unit(dialogues: str) -> None:
    with pytest.raises(DataError, match="household"):
        read_examples(dialogues, "household")  # type: ignore[arg-type]


def test_users_are_named_by_plain_lines_alone(dialogues: str, write_lines: Callable[..., str]) -> None:
    lines = [{"utterance": f"find {i}", "unit": f"user-{i % 3}"} for i in range(7)]
    turns = read_examples(write_lines(lines, "users.jsonl"), "user")
    assert [t.unit for t in turns] == [line["unit"] for line in lines]
    nobody = write_lines([{"utterance": "hello"}], "nobody.jsonl")
    for path, place in ((dialogues, ":1"), (nobody, ":1"), ("embedded:train?num=5", "")):
        with pytest.raises(DataError) as error:
            read_examples(path, "user")
        assert error.value.about == path + place
        assert "\n" not in str(error.value)


@pytest.mark.skipif("DOPPEL_DATA" not in os.environ, reason="DOPPEL_DATA is not set: no published data at hand")
def test_the_published_layout() -> None:
    folder = Path(os.environ["DOPPEL_DATA"], "smcalflow")
    train = read_examples(str(folder / "valid.dataflow_dialogues.jsonl.zip"), "dialogue")
    assert len({t.unit for t in train}) == 425
    assert all(t.parse for t in train)
