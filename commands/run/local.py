"""The steps of a run folder, here, one after the other."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from commands.run.run_stage import run_stage
from commands.runs.steps import Step
from commands.runs.yaml_files import PLACE, ROOT
from doppel.console.say import say

#: Rough seconds of the kinds, from which the time left is guessed.
_WEIGHTS = {"fit": 4.0, "predict": 3.0, "metrics": 3.0, "tool": 0.5}
_WHAT = {"fit": "training", "predict": "sampling", "metrics": "comparing", "tool": "a moment"}
#: Seconds between the lines of a step that has no bar of its own.
_PULSE = 60.0
_WHAT_OF = {"calibrate": "counting and drawing", "attributes": "counting and drawing", "evolve": "writing and voting"}


def run_here(run: Path, steps: Sequence[Step], python: str = sys.executable, is_verbose: bool = False) -> int:
    """Run each step that has no mark in ``RUN/.done``, and say how long it took and what is left.

    Args:
        run: The run folder.
        steps: In an order in which they can be run.
        python: The interpreter of the commands.
        is_verbose: Whether metrics and report print their tables too.

    Returns:
        Exit status: 0, or that of the first step that did not end well.
    """
    marks = {step.name: run / ".done" / step.name if step.is_once else None for step in steps}
    waiting = [step for step in steps if (mark := marks[step.name]) is None or not mark.is_file()]
    total, spent, begin, is_measured = sum(map(_weight, waiting)), 0.0, time.time(), False
    # In a job each step is started by srun, and another interpreter cannot be forked from this one's like.
    can_fork = python == sys.executable and "SLURM_JOB_ID" not in os.environ
    is_worth_it = can_fork and sum(step.kind != "tool" for step in waiting) > 1
    for number, step in enumerate(steps, 1):
        head = f"── {step.name} ({number} of {len(steps)})"
        if step not in waiting:
            say(f"{head}: done already, skipped")
            continue
        left = f", {minutes((time.time() - begin) / spent * (total - spent))} left" if is_measured else ""
        what = next((words for verb, words in _WHAT_OF.items() if step.command == verb), _WHAT[step.kind])
        say(f"{head}: {what}{left}")
        started = time.time()
        # metrics and the report are told by the last lines of the run
        is_told = is_verbose or step.command == "evolve" or (step.kind != "metrics" and step.name != "report")
        command = [python, str(ROOT / "cli.py"), *step.words(run)]
        stdout = None if is_told else subprocess.DEVNULL
        with nullcontext() if step.kind in ("fit", "predict") else telling_the_time(step.name):
            status = run_stage(step.kind, marks[step.name], command, PLACE, stdout, is_worth_it)
        if status:
            why = {75: "was preempted", 130: "was interrupted"}.get(status, f"failed with status {status}")
            sys.stderr.write(f"error: {step.name} {why}, see above; the same command resumes there\n")
            return status
        spent += _weight(step)
        is_measured = is_measured or step.kind != "tool"  # which says nothing of how long a training takes
        say(f"   {step.name}: {minutes(time.time() - started)}")
    return 0


@contextmanager
def telling_the_time(name: str) -> Iterator[None]:
    """Say every minute that a step goes on: a bar would tell how many private texts it has read, the time does not."""
    ended, begin = threading.Event(), time.time()

    def tell() -> None:
        while not ended.wait(_PULSE):
            say(f"   {name}: {minutes(time.time() - begin)} so far")

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def minutes(seconds: float) -> str:
    """A duration for people."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _weight(step: Step) -> float:
    epochs = step.config.get("trainer", {}).get("max_epochs", 1) if step.kind == "fit" else 1
    return _WEIGHTS[step.kind] * float(epochs)
