"""Tasks of one step: which runs it, what the others are told, and what becomes of a piece whose task is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from doppel.console.tasks import BOARD, WORK, claimed, told, words_of_task

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def _process(code: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has done what it says, and waits."""
    code = (
        f"import sys\nfrom pathlib import Path\nfrom doppel.console.tasks import *\n{code}\nprint(flush=True)\ninput()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "\n"
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("variables", "is_first"),
    [
        ({}, True),
        ({"SLURM_PROCID": "1"}, True),  # of another srun, which a script in it calls by itself
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}, True),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}, False),
        ({"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "RANK": "1", "SLURM_PROCID": "0"}, False),
        ({"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "1", "RANK": "0", "SLURM_PROCID": "1"}, True),
    ],
)
def test_the_first_task_alone_runs_the_step(
    variables: dict[str, str], is_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert words_of_task(["resample", "--seed=1"]) == (["resample", "--seed=1"] if is_first else [WORK])


def test_the_others_are_told_what_to_do_until_the_first_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0", BOARD: str(tmp_path / "board")}
    monkeypatch.setenv(BOARD, first[BOARD])
    with _process("words_of_task(['words'])\nfor name in 'ab': tell(Path(name))", **first) as process:
        files = told()
        assert [next(files), next(files)] == [Path("a"), Path("b")]
        process.kill()
        assert list(files) == []


def test_a_task_without_a_board_ends_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(BOARD, raising=False)
    assert list(told()) == []
    assert BOARD in capsys.readouterr().out


def test_a_piece_is_of_one_process_until_that_is_killed(tmp_path: Path) -> None:
    for name in ("theirs", "ours"):
        (tmp_path / name).write_text(name)
    with _process(f"(claim := claimed(Path({str(tmp_path)!r}, 'theirs'))).__enter__()") as other:
        for name, found in (("theirs", None), ("ours", b"ours"), ("gone", None)):
            with claimed(tmp_path / name) as file:
                assert (file and file.read()) == found
        other.kill()
        other.wait()
        with claimed(tmp_path / "theirs") as file:
            assert file and file.read() == b"theirs"
