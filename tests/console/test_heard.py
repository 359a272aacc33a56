"""What a run says is written down, and what its steps say is heard by the process that shows it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from doppel.console.heard import heard, written_down
from doppel.console.say import say
from doppel.errors import UserError

STEP = """
import sys
print("a step of", sys.stderr.isatty(), "terminal")
print("private/exact_copies (NOT PRIVATE)  0.0625")
for done in (1, 2):
    sys.stderr.write(f"\\r{done}/2 samples")
sys.stderr.write("\\nα without an end")
"""


def run_step() -> None:
    with heard() as outputs:
        subprocess.run([sys.executable, "-c", STEP], stdout=outputs[0], stderr=outputs[1], check=True)


def test_a_step_is_heard_where_there_is_no_descriptor_and_written_down_without_private_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the cell of a notebook, whose streams are objects alone."""
    out, err, log = io.StringIO(), io.StringIO(), tmp_path / "run.log"
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    say("before")
    with written_down(log):
        say("samples /data/private/run/samples.jsonl")
        run_step()
    with pytest.raises(UserError), written_down(log):
        other = threading.Thread(target=say, args=("of another thread",))
        other.start()
        other.join()
        raise UserError("no such setting")
    step = "a step of False terminal\nprivate/exact_copies (NOT PRIVATE)  0.0625\n"
    assert out.getvalue() == f"before\nsamples /data/private/run/samples.jsonl\n{step}of another thread\n"
    assert err.getvalue() == "\r1/2 samples\r2/2 samples\nα without an end"
    lines = log.read_text().splitlines()
    assert [line[:2] for line in (lines[0], lines[5])] == ["━━"] * 2
    assert lines[1] == "samples /data/private/run/samples.jsonl" and lines[6:] == ["error: no such setting"]
    assert sorted(lines[2:5]) == ["2/2 samples", "a step of False terminal", "α without an end"]
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_terminal_remains_one_to_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setattr(sys, "stdout", io.StringIO())
        with written_down(tmp_path / "run.log"):
            run_step()
    assert b"2/2 samples" in os.read(ours, 4096)
    os.close(ours)
    assert "a step of True terminal" in (tmp_path / "run.log").read_text()


def test_what_is_not_written_down_goes_where_it_went() -> None:
    with heard() as outputs:
        assert outputs == (1, 2)
    with heard(is_quiet=True) as (out, err):
        assert os.write(out, b"thrown away") and err == 2
