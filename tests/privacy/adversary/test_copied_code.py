"""A file of private data lies in the checkout; nobody may find it in the run folder, which is handed on."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from commands.run.execution import code_copy
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


@pytest.mark.parametrize("has_git", [True, False])
def test_the_environment_of_a_site_which_may_hold_keys_is_not_copied(
    has_git: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout, site = tmp_path / "checkout", "environment: {WANDB_API_KEY: secret}\n"
    monkeypatch.setattr(code_copy, "ROOT", checkout)
    files = {"cli.py": "x", ".gitignore": "/slurm/site.yaml\n", "slurm/site.yaml": site, "slurm/job.sh": "x"}
    for name, text in files.items():
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text(text)
    if has_git:
        subprocess.run(["git", "-C", str(checkout), "init", "-q"], check=True)
        subprocess.run(["git", "-C", str(checkout), "add", "."], check=True)
    assert code_copy.copy_code(tmp_path / "run" / "code")
    copied = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert "job.sh" in {path.name for path in copied} and not [path for path in copied if "secret" in path.read_text()]


def test_an_error_of_reading_is_not_told_as_one_of_writing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"), whole_file(tmp_path / "out" / "new.txt") as file:
        file.write((tmp_path / "out" / "missing.txt").read_bytes())
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="new.txt"), whole_file(tmp_path / "file" / "new.txt"):
        pass


def test_a_checkout_of_another_user_is_read_as_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a cluster with one checkout for all; git alone calls that dubious ownership, and fails."""
    monkeypatch.setattr(code_copy, "ROOT", tmp_path)
    (tmp_path / "cli.py").touch()
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a"]
    for words in (["init", "-q"], ["add", "cli.py"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    assert subprocess.run([*git, "status"], capture_output=True, check=False).returncode
    assert code_copy.code_files() == ["cli.py"] and len(code_copy.version()) == 12


def test_where_git_fails_that_is_told_once_and_a_table_beside_the_code_is_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(code_copy, "ROOT", tmp_path)
    (tmp_path / ".git").mkdir()  # of no repository
    for name in ("cli.py", "private.csv"):
        (tmp_path / name).touch()
    assert code_copy.code_files() == ["cli.py"] and code_copy.version() == "unknown"
    assert capsys.readouterr().out.count("git does not tell of") == 1
    monkeypatch.setenv("PATH", "")
    assert code_copy.code_files() == ["cli.py"] and "No such file" in capsys.readouterr().out
    (tmp_path / ".git").rmdir()
    assert code_copy.version() == "unknown" and not capsys.readouterr().out
