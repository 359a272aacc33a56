"""A file of private data lies in the checkout; nobody may find it in the run folder, which is handed on."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from commands.run import code_copy
from doppel.errors import DataError
from doppel.files import whole_file


def test_only_source_is_copied_into_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(code_copy, "ROOT", tmp_path)
    for name in ("cli.py", "table.csv", "new.py", "private.jsonl", "private.csv"):
        (tmp_path / name).write_text("x")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "cli.py", "table.csv"], check=True)
    assert set(code_copy.code_files()) == {"cli.py", "table.csv", "new.py"}
    assert "new.py" in (said := capsys.readouterr().out) and "private" not in said


def test_an_error_of_reading_is_not_told_as_one_of_writing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"), whole_file(tmp_path / "out" / "new.txt") as file:
        file.write((tmp_path / "out" / "missing.txt").read_bytes())
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="new.txt"), whole_file(tmp_path / "file" / "new.txt"):
        pass
