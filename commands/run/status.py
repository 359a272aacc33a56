"""``python cli.py status`` and ``cancel``: where a run stands, here or on a cluster, and its end."""

from __future__ import annotations

import fcntl
import glob
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from commands.run.execution.slurm import jobs_of, queue
from commands.run.experiment.experiment import load
from commands.run.steps.recipes import steps_of
from commands.run_folder.run_folder import RunFolder
from doppel.console.heard import LOG
from doppel.console.ledger import FILE_NAME
from doppel.console.say import minutes
from doppel.errors import UserError

_BEGUN = re.compile(r"── ([\w-]+) \(\d+ of \d+\): (?!done already)")


def status(run_dir: Path) -> int:
    """Tell of each step of a run whether it is done, runs, waits or has failed, and what was spent.

    Reads only. Of a job it tells the state that SLURM gives, how often it was requeued, and of one that has left the
    queue without an end the last line that speaks of an error; likewise of a run on this machine.

    Example:
        python cli.py status runs/mine

    Args:
        run_dir: Run folder, or a folder of runs such as a grid.

    Returns:
        Exit status: 1 where a step has failed.

    Raises:
        UserError: There is no run.
    """
    runs = _runs(run_dir)
    found = queue(*runs)
    told = [_tell(run, found) for run in runs]
    return int(any(told))


def cancel(run_dir: Path) -> int:
    """Take the jobs of a run out of the queue; trainings and samplings that run save first.

    What is done, and spent, stays: the command that began the run submits the rest again. A run on this machine is
    ended by Ctrl-C where it runs.

    Example:
        python cli.py cancel runs/mine

    Args:
        run_dir: Run folder, or a folder of runs such as a grid.

    Raises:
        UserError: There is no run, or SLURM does not cancel a job.
    """
    runs = _runs(run_dir)
    waiting = queue(*runs)
    found = {job: f"{run.name} {name}" for run in runs for name, job in jobs_of(run).items() if job in waiting}
    if not found:
        sys.stdout.write("no job of it is in the queue\n")
        return 0
    done = subprocess.run(["scancel", *found], capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"scancel did not cancel {', '.join(found)}: {' '.join(done.stderr.split())}")
    sys.stdout.write("".join(f"cancelled {name}: job {job}\n" for job, name in found.items()))
    return 0


def _runs(folder: Path) -> list[Path]:
    runs = [run.folder for run in RunFolder.find(folder) if (run.folder / "experiment.yaml").is_file()]
    if not runs:
        raise UserError(f"{folder} holds no run: give the RUN_DIR of `python cli.py run`")
    return runs


def _tell(run: Path, found: Mapping[str, str]) -> bool:
    """Tell of a run; whether a step of it has failed."""
    steps, jobs = steps_of(load(run / "experiment.yaml"), run), jobs_of(run)
    here, is_running = _here(run)
    lines, failed = [], False
    for step in steps:
        mark, job = run / ".done" / step.name, jobs.get(step.name)
        if mark.is_file():
            what = f"done in {minutes(int(mark.read_text(encoding='utf-8') or 0))}"
        elif job is not None and job in found:
            what = found[job]
        elif step.name == here and is_running:
            what = "runs on this machine"
        elif not step.is_once and (run / "report.json").is_file():
            what = "done"
        elif (error := _last_error(run, step.name, job, step.name == here)) is not None:
            what, failed = error, True
        else:
            what = "waits" if job is None else f"job {job} has left the queue"
        lines.append(f"  {step.name}: {what}\n")
    sys.stdout.write(f"{run}: {_spent(run)}\n{''.join(lines)}")
    return failed


def _spent(run: Path) -> str:
    """What was spent, a word for each budget."""
    if not (run / FILE_NAME).is_file():
        return "nothing was spent"
    from commands.privacy.coverage import covered_summary

    summary = covered_summary(RunFolder(run)) or {"scopes": {}}
    told = [
        f"{name} NOT PRIVATE" if of["voids"] else f"{name} ε {of['epsilon']:.4g} of {of['target_epsilon']:g}"
        for name, of in summary["scopes"].items()
    ]
    return f"spent: {', '.join(told) or 'nothing'}"


def _here(run: Path) -> tuple[str | None, bool]:
    """The step that a run on this machine has begun last, and whether it goes on."""
    log = run / LOG
    begun = _BEGUN.findall(_read(log)) if log.is_file() else []
    if not (run / ".lock").is_file():
        return None, False
    try:
        with (run / ".lock").open("rb") as file:  # shared, for whoever may only read the folder
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return (begun[-1] if begun else None), False
    except BlockingIOError:
        return (begun[-1] if begun else None), True


def _last_error(run: Path, name: str, job: str | None, is_here: bool) -> str | None:
    """The last line of an error that a step has left; None where it left none."""
    said = [_BEGUN.split(_read(run / LOG))[-1]] if is_here else []
    if job is not None:
        folders = [glob.escape(str(folder / name)) for folder in (run / "slurm", run.parent / "slurm")]
        places = [f"{folder}-{job}{end}" for folder in folders for end in (".out", "_[0-9]*.out")]
        said += [_read(Path(path)) for place in places for path in glob.glob(place)]
    lines = [line.strip() for text in said for line in text.splitlines()]
    errors = [line for line in lines if re.search(r"\berror\b|Error:", line) and "srun: error" not in line]
    errors = [line for line in errors if ", see above; " not in line] or errors
    head = "failed" if job is None or is_here else f"job {job} failed"
    return f"{head}: {errors[-1][:300]}" if errors else None


def _read(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")
