"""A command starts at once: it imports what it needs alone, and Ctrl-C is one line."""

from __future__ import annotations

import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from doppel.console.say import program

ROOT = Path(__file__).parents[2]
HEAVY = "torch lightning transformers opacus sklearn torchmetrics wandb"
RUN = """
import sys
import cli
heavy = set(sys.argv.pop(1).split())
status = cli.main(sys.argv[1:])
sys.exit(f"status {status}, imported {sorted(heavy & set(sys.modules))}")
"""


def started(*words: str) -> str:
    done = subprocess.run([sys.executable, "-c", RUN, HEAVY, *words], cwd=ROOT, capture_output=True, text=True)
    return done.stderr


@pytest.mark.parametrize("command", ["ledger", "verify"])
def test_who_reads_a_run_waits_for_no_training_library(command: str, own_private_run: Path) -> None:
    status = 0 if command == "ledger" else "[01]"
    error = started(command, str(own_private_run))

    assert re.search(rf"status {status}, imported \[\]", error), error


def test_a_typo_is_found_before_anything_heavy_is_imported() -> None:
    error = started("run", "configs/experiments/quickstart.yaml", "/nowhere", "--sett", "x")
    assert "did you mean 'set'?" in error
    assert error.endswith("status 2, imported []\n")


@pytest.mark.parametrize("after", [0.3, 0.6, 1.2])
def test_ctrl_c_while_importing_is_one_line(after: float) -> None:
    words = [sys.executable, "cli.py", "fit", "--model=x"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    heard = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # in the background too
    process = subprocess.Popen(words, cwd=ROOT, preexec_fn=heard, **pipes)
    time.sleep(after)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate()
    assert (process.returncode, error) == (130, "interrupted\n")


@pytest.mark.parametrize("path", ["", str(Path(sys.executable).parent)])
def test_the_command_that_a_run_prints_calls_this_interpreter_with_or_without_an_environment(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", path)
    python, _ = program().split()
    found = shutil.which(python)
    assert found is not None and os.path.abspath(found) == os.path.abspath(sys.executable)


@pytest.mark.slow
def test_a_console_that_lacks_characters_and_a_wish_for_warnings_end_no_command() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii", "PYTHONWARNINGS": "error"}
    words = [
        sys.executable,
        str(ROOT / "cli.py"),
        "plan",
        "--target_epsilon",
        "3",
        "--num_units",
        "999",
        "--epochs",
        "1",
    ]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0 and "Traceback" not in done.stderr
    assert "delta" in done.stdout and done.stdout.isascii()
    code = (
        "import os, warnings; from doppel.console.dispatch import main; main({'A': {'b': 'cli:main'}}, 'ε', 'x', []);"
        "warnings.warn('old', DeprecationWarning); print(os.environ['PYTHONWARNINGS'])"
    )
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0 and done.stdout.startswith("?") and done.stdout.endswith("default\n")


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_an_output_that_was_a_file_may_have_become_a_pipe(tmp_path: Path, encoding: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": encoding}
    code = "import os, sys; read, write = os.pipe(); os.dup2(write, 1); from doppel.console.dispatch import main; "
    code += "sys.exit(main({'A': {'b': 'cli:main'}}, 'x', 'x', []))"
    with (tmp_path / "out").open("w") as out:
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, stdout=out, stderr=-1, cwd=ROOT, check=False
        )
    assert (done.returncode, done.stderr) == (0, b"")
