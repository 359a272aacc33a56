"""Whole files: there or not, and their owner's alone; JSON lines that say where they are broken."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from doppel.errors import DataError
from doppel.files import read_json_lines, read_list, read_yaml, whole_file, write_json, write_json_lines


def test_what_is_written_is_read_again_by_the_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lines.jsonl"
    records = [{"utterance": "für Élise"}, {"parse": None}]
    write_json_lines(path, iter(records))
    assert list(read_json_lines(path)) == list(enumerate(records, 1))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["lines.jsonl"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), whole_file(path) as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_what_json_cannot_say_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "value.json", {"loss": float("nan")})
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="file/below"):
        write_json_lines(tmp_path / "file" / "below", [])


def test_a_missing_file_and_a_broken_line_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.jsonl"):
        list(read_json_lines(tmp_path / "nowhere.jsonl"))
    path = tmp_path / "lines.jsonl"
    path.write_text('{"a": 1}\n\n[1]\n')
    with pytest.raises(DataError, match="list") as refused:
        list(read_json_lines(path))
    assert refused.value.about == f"{path}:3"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_a_list_is_the_same_in_every_encoding_and_with_every_end_of_line(
    tmp_path: Path, encoding: str, end: str
) -> None:
    path = tmp_path / "list.txt"
    path.write_bytes(end.join(["Grüße 🎉", " ", "two\u2028parts\x85 ", "\ufeffb"]).encode(encoding))
    assert read_list(path) == ["Grüße 🎉", "two\u2028parts", "\ufeffb"]  # a mark is one at the start alone


def test_another_encoding_and_half_a_character_are_named_by_their_line(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(("plain\n" * 9_000 + "Grüße\n").encode("cp1252"))
    for read in (read_list, read_yaml):
        with pytest.raises(DataError, match="UTF-8") as refused:
            read(path)
        assert refused.value.about == f"{path}:9001"
    path.write_text('{"text": "\\ud83d\\ude42"}\n{"text": "so \\uD83d see"}\n')
    lines = read_json_lines(path)
    assert next(lines) == (1, {"text": "🙂"})
    with pytest.raises(DataError, match="half of a character") as refused:
        next(lines)
    assert refused.value.about == f"{path}:2" and "see" not in str(refused.value)


def test_values_of_a_public_table_are_text_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "values.yaml"
    path.write_text("answered: [yes, No, on]\ncountry: [NO]\nzip: [01234]\nopens: [9:30]\nversion: [1.10, 1e5]\n")
    assert read_yaml(path) == {
        "answered": ["yes", "No", "on"],
        "country": ["NO"],
        "zip": ["01234"],
        "opens": ["9:30"],
        "version": ["1.10", "1e5"],
    }
    path.write_text("a: [1\nb: 2\n")
    with pytest.raises(DataError, match="is no YAML") as refused:
        read_yaml(path)
    assert refused.value.about == f"{path}:2"
