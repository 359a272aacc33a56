"""A step that is told to stop, in a job and elsewhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """\
import os, sys, time
from doppel.console import dispatch
os.environ["PYTHONPATH"] = ""
def wait(argv):
    print("listening", flush=True)
    time.sleep(30)
sys.modules["waiting"] = sys.modules["__main__"]
dispatch.main({}, "", "x", ["step", "wait"], None, {"wait": "waiting:wait"})
"""


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGUSR2", "SIGTERM"])
@pytest.mark.parametrize("is_job", [True, False])
def test_a_step_of_a_job_asks_to_go_on_later(name: str, is_job: bool, tmp_path: Path) -> None:
    number = getattr(signal, name)
    environment = {key: value for key, value in os.environ.items() if key != "DOPPEL_AGAIN"}
    environment |= {"DOPPEL_AGAIN": str(tmp_path / "again")} if is_job else {}
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, env=environment) as step:
        assert step.stdout is not None and step.stdout.readline() == b"listening\n"
        step.send_signal(number)
        assert step.wait(20) == (75 if is_job else -number)
    assert (tmp_path / "again").exists() == is_job


def test_a_process_that_a_step_has_forked_is_ended_by_it_and_asks_for_nothing(tmp_path: Path) -> None:
    """As the workers of a data loader are: one that took no SIGTERM would be waited for."""
    program = (
        "import multiprocessing, time; from doppel.console.again import stop_when_told; stop_when_told();"
        "own = multiprocessing.get_context('fork'); runs = own.Event();"
        "worker = own.Process(target=lambda: (runs.set(), time.sleep(9)), daemon=True); worker.start(); runs.wait();"
        "worker.terminate(); worker.join(); print(worker.exitcode)"
    )
    environment = {**os.environ, "DOPPEL_AGAIN": str(tmp_path / "again")}
    told = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, timeout=30, check=True)
    assert told.stdout == b"-15\n" and not (tmp_path / "again").exists()
