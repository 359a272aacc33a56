"""Steps that run here, one after the other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from commands.lightning.stage_folder import FailedStarts, last_checkpoint
from commands.run.execution.forks import Forked, can_fork
from commands.run_folder.manifest_writer import enter
from commands.run_folder.places import PLACE, ROOT
from commands.run_folder.steps import Step
from doppel.console.again import EXIT_STATUS
from doppel.console.heard import heard
from doppel.console.parent import VARIABLE
from doppel.console.say import minutes, say, telling_the_time
from doppel.files import write_text

#: Exit statuses of what somebody, or a cluster, has ended: nothing is wrong with it.
ENDED = {EXIT_STATUS: "was preempted", 130: "was interrupted", 143: "was stopped"}
#: Rough seconds of the kinds, from which the time left is guessed.
_WEIGHTS = {"fit": 4.0, "predict": 3.0, "metrics": 3.0, "tool": 0.5}
_WHAT = {"fit": "training", "predict": "sampling", "metrics": "comparing", "tool": "a moment"}
#: What takes less memory.
_LESS = {"fit": "data.max_tokens_per_micro_batch", "predict": "sampling.max_rows"}
_WHAT_OF = {"resample": "counting and drawing", "attributes": "counting and drawing", "evolve": "writing and voting"}


def run_here(
    run: Path, steps: Sequence[Step], python: Sequence[str] = (sys.executable,), is_verbose: bool = False
) -> int:
    """Run each step that has no mark in ``RUN/.done``, and say how long it took and what is left.

    Returns:
        Exit status: 0, or that of the first step that did not end well.
    """
    marks = {step.name: run / ".done" / step.name if step.is_once else None for step in steps}
    waiting = [step for step in steps if (mark := marks[step.name]) is None or not mark.is_file()]
    total, spent, began, is_measured = sum(map(_weight, waiting)), 0.0, time.time(), False
    is_worth_it = can_fork(python) and any(step.kind != "tool" for step in waiting)  # whose imports the gate did
    for number, step in enumerate(steps, 1):
        head = f"── {step.name} ({number} of {len(steps)})"
        if step not in waiting:
            say(f"{head}: done already, skipped")
            continue
        left = f", {minutes((time.time() - began) / spent * (total - spent))} left" if is_measured else ""
        say(f"{head}: {_WHAT_OF.get(step.command, _WHAT[step.kind])}{left}")
        started = time.time()
        # metrics and the report are told by the last lines of the run
        is_told = is_verbose or step.command == "evolve" or (step.kind != "metrics" and step.name != "report")
        command = [*python, str(ROOT / "cli.py"), *step.words(run)]
        bar = nullcontext() if step.kind in ("fit", "predict") else telling_the_time(step.name)
        with heard(not is_told) as outputs, bar:
            status = run_step(step.kind, marks[step.name], command, PLACE, is_worth_it, outputs)
        if status:
            why = {**ENDED, 137: "was killed"}.get(status, f"failed with status {status}")
            say(f"error: {step.name} {why}, see above; the same command resumes there", is_error=True)
            return status
        spent += _weight(step)
        is_measured = is_measured or step.kind != "tool"  # which says nothing of how long a training takes
        say(f"   {step.name}: {minutes(time.time() - started)}")
    return 0


def run_step(
    kind: str,
    mark: Path | None,
    command: Sequence[str],
    cwd: Path | None = None,
    is_forked: bool = False,
    outputs: tuple[int, int] = (1, 2),
) -> int:
    """Run a command, and write its mark: how many seconds it took.

    What the step has left is entered into the run's manifest before that
    (:func:`~commands.run_folder.manifest_writer.enter`), by this process alone, however many tasks the command had.

    A training goes on from the last checkpoint of its ``--run_dir``, if there is one.

    Args:
        kind: Of the step.
        mark: RUN/.done/NAME; None runs the command every time.
        command: Its words.
        cwd: Where it runs.
        is_forked: Whether it is forked with its imports done, in place of a new interpreter of ``cli.py``.
        outputs: Descriptors of its output and its errors.

    Returns:
        Exit status; a command that fails leaves no mark, and 75 says that it was preempted. 143 where SIGTERM came,
        also of a command that ended well all the same: nothing is to follow it.
    """
    begin(kind, command)
    words = [*command, *(["--ckpt_path", "last"] if kind == "fit" else [])]
    sys.stdout.flush()
    start = time.time()
    before = signal.getsignal(signal.SIGTERM)
    process: Forked | subprocess.Popen[bytes] | None = None
    is_stopped = False

    def stop(*_: object) -> None:
        nonlocal is_stopped
        is_stopped = True
        if process is not None and process.pid is not None:
            process.terminate()

    try:
        if is_forked:
            process = Forked(words[1:], cwd, outputs)
            process.start()  # while it imports, a signal ends this process, whose death ends the others
            _on_sigterm(stop)
        else:
            environment = {**os.environ, "DOPPEL_RUN": "1"}
            if "SLURM_JOB_ID" not in os.environ:  # a job ends all that it started, and some of it saves first
                environment[VARIABLE] = str(os.getpid())
            _on_sigterm(stop)  # before: in a job nothing else ends what was just started
            out, err = outputs
            process = subprocess.Popen(words, cwd=cwd, stdout=out, stderr=err, env=environment)
        if is_stopped:
            process.terminate()
        status = process.wait()
    except KeyboardInterrupt:  # the command got it too, and saves
        while process is not None and process.pid is not None:
            with suppress(KeyboardInterrupt):
                process.wait()
                break
        return 130
    finally:
        _on_sigterm(before)
    status = 128 - status if status < 0 else status
    status = 143 if is_stopped and status not in (0, EXIT_STATUS) else status
    status = end(kind, mark, command, status, int(time.time() - start))
    return 143 if is_stopped and status == 0 else status


def begin(kind: str, words: Sequence[str]) -> None:
    """Say whether a training goes on from a checkpoint.

    Raises:
        UserError: It has failed twice at the same place.
    """
    if kind != "fit":
        return
    FailedStarts(words).begin()
    stage = Path(words[words.index("--run_dir") + 1])
    if last_checkpoint(stage, may_begin_anew=True) is not None:
        say(f"   resuming from {stage.name}/checkpoints/last.ckpt")


def end(kind: str, mark: Path | None, words: Sequence[str], status: int, seconds: int) -> int:
    """Note how a command has ended, and return its status: what it has left is in the manifest before it is marked.

    ``seconds`` are what it took; a training that has failed after it paid is counted.
    """
    if kind == "fit" and status not in (0, *ENDED):
        FailedStarts(words).note()
    if status == 137:
        _tell_killed(kind)
    if status == 0 and mark is not None:
        enter(mark.parent.parent, mark.name)
        write_text(mark, f"{seconds}\n")
    return status


def _tell_killed(kind: str) -> None:
    """Say what helps where a system kills, which it does where memory runs out."""
    less = f", or give a smaller {_LESS[kind]}" if kind in _LESS else ""
    more = (
        "free some"
        if "SLURM_JOB_ID" not in os.environ
        else f"ask for more (--slurm {kind if kind in _LESS else 'tool'}_mem=64G)"
    )
    say(f"error: killed, as a system does where memory runs out: {more}{less}", is_error=True)


def _on_sigterm(handler: Any) -> None:
    """Set what SIGTERM does, where Python allows it: in the first thread."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def _weight(step: Step) -> float:
    epochs = step.config.get("trainer", {}).get("max_epochs", 1) if step.kind == "fit" else 1
    return _WEIGHTS[step.kind] * float(epochs)
