"""Whole files: there or not, and their owner's alone; JSON lines that say where they are broken."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from doppel.errors import DataError
from doppel.files import read_json_lines, whole_file, write_json, write_json_lines


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
