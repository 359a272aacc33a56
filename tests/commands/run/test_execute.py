"""Steps one after the other, here."""

from __future__ import annotations

import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from commands.run.execution import execute
from commands.run.execution.execute import run_here, run_step
from commands.run_folder.steps import Step
from doppel.console import say
from doppel.errors import UserError

#: A program in place of the interpreter of steps: it notes which one it is, and does what a variable says.
_PYTHON = '#!/usr/bin/env bash\necho "$3" >> "$CALLS"\n'


def test_a_step_without_a_bar_says_that_it_goes_on_and_nothing_after_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(say, "_PULSE", 0.05)
    with say.telling_the_time("resample_topics"):
        time.sleep(0.3)
    lines = capsys.readouterr().out.splitlines()
    assert lines and all(line == "   resample_topics: 0 s so far" for line in lines)
    time.sleep(0.15)
    assert not capsys.readouterr().out


def _steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> tuple[Path, list[Step], list[str]]:
    """A run of two steps, and the interpreter that does for each what the program says."""
    python = tmp_path / "python"
    python.write_text(_PYTHON + program)
    python.chmod(0o755)
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    return tmp_path / "run", [Step("first", "words"), Step("second", "words")], [str(python)]


def test_no_step_follows_one_in_which_the_run_was_stopped_even_if_that_ended_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = 'trap "" TERM; kill -TERM $PPID; sleep .3; exit 0\n'
    run, steps, python = _steps(tmp_path, monkeypatch, program)
    before = signal.getsignal(signal.SIGTERM)
    assert run_here(run, steps, python) == 143
    assert (tmp_path / "calls").read_text().split() == ["words"], "the second step started"
    assert (run / ".done" / "first").exists() and "first was stopped" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_run_goes_from_any_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, steps, _ = _steps(tmp_path, monkeypatch, "")
    monkeypatch.setattr(execute, "Forked", None)  # what forks would end with the thread
    (tmp_path / "cli.py").write_text("import sys; sys.exit(0)\n")
    monkeypatch.setattr(execute, "ROOT", tmp_path)
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(run_here(run, steps, [sys.executable])))
    thread.start()
    thread.join()
    assert found == [0] and {path.name for path in (run / ".done").iterdir()} == {"first", "second"}


def test_a_training_that_was_killed_twice_is_not_paid_a_third_time_and_hears_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    (tmp_path / "fit").mkdir()
    ledger, mark = tmp_path / "ledger.jsonl", tmp_path / ".done" / "fit"
    program = "import os, sys; open(sys.argv[1], 'a').write('spent\\n'); os.kill(os.getpid(), int(sys.argv[2]))"

    def start(number: signal.Signals) -> int:
        words = [sys.executable, "-c", program, str(ledger), str(number.value), "--run_dir", str(tmp_path / "fit")]
        return run_step("fit", mark, words)

    assert start(signal.SIGTERM) == 143 and not (tmp_path / "fit" / ".failed").exists()  # a stop is no failure
    assert [start(signal.SIGKILL), start(signal.SIGKILL)] == [137, 137]
    assert capsys.readouterr().err.count("where memory runs out: free some, or give a smaller data.max_tokens") == 2
    with pytest.raises(UserError, match="failed twice"):
        start(signal.SIGKILL)
    assert ledger.read_text() == "spent\n" * 3
