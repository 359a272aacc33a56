"""Many runs of one experiment: one after the other, or as the tasks of one array."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from commands.run.execution.jobs import submit_array
from commands.run.execution.slurm import Site, queued
from commands.run.experiment.values import Point
from commands.run.steps.run_plan import Mode, RunPlan
from doppel.console.say import say
from doppel.errors import UserError

#: Exit statuses of a run that somebody, or the machine, has ended: at Ctrl-C, by SIGTERM, or preempted.
_ENDED = (130, 143, 75)


def name_points(points: Sequence[Point]) -> list[tuple[str, Point]]:
    """Return the combinations of a grid by folder, ``epsilon=3,lr=0.002``: each field by its shortest unique ending.

    Raises:
        UserError: Two would share a folder.
    """
    named: dict[str, Point] = {}
    for point in points:
        plain = {_last_words(key, point): re.sub(r"[^\w.+-]+", "-", str(v)).strip("-") for key, v in point.items()}
        name = ",".join(f"{key}={value}" for key, value in sorted(plain.items()))
        if name in named:
            raise UserError(
                f"--grid: {named[name]} and {point} would both be the run {name}: give each value once, and values "
                "that differ in letters, digits or one of _.+-"
            )
        named[name] = point
    return list(named.items())


def _last_words(name: str, names: Iterable[str]) -> str:
    words, others = name.split("."), [other.split(".") for other in names if other != name]
    enough = (n for n in range(1, len(words)) if all(other[-n:] != words[-n:] for other in others))
    return ".".join(words[-next(enough, len(words)) :])


def run_grid(
    points: list[tuple[str, Point]],
    make: Callable[[Point, str], RunPlan],
    gate: Callable[[RunPlan], None],
    go: Callable[[RunPlan], int],
    runs: Path,
    site: Site,
    mode: Mode,
) -> int:
    """Run every point that may start: one after the other, or as the tasks of one array.

    All are asked first whether they may, before any of them spends. The points after a failed one take place, but not
    after one that was interrupted, or ended from without.

    Args:
        points: Name and values of each.
        make: Returns what a point has to do.
        gate: Refuses one, by UserError.
        go: Runs one here; exit status.
        runs: Folder of all.
        site: The cluster.
        mode: What is done.

    Returns:
        Exit status.
    """
    summary: list[str] = []
    ready: dict[str, RunPlan] = {}
    failed, is_here = 0, mode in ("local", "check")
    for name, point in points:
        if is_here:
            say(f"━━ {name}")
        try:
            plan = make(point, name)
            if not is_here and not plan.waiting:
                summary.append(f"{name}: finished already")
            elif not is_here and (job := queued(runs, name)) is not None:
                summary.append(f"{name}: job {job} is in the queue already")
            else:
                gate(plan)
                ready[name] = plan
        except UserError as error:
            failed = 1
            summary.append(f"{name}: {'FAILED with status 2: error' if mode == 'local' else 'REFUSED'}: {error}")
    if mode == "check":
        summary += [f"{name}: checked" for name in ready]
    elif ready and mode != "local":
        summary += submit_array(ready, runs, site, mode == "dry-run")
    for name, plan in ready.items() if mode == "local" else ():
        if failed in _ENDED:
            summary.append(f"{name}: not started")
            continue
        say(f"━━ {name}")
        status = _status(plan, go)
        failed = status if status in _ENDED else failed or min(status, 1)
        summary.append(f"{name}: finished" if status == 0 else f"{name}: FAILED with status {status}")
    if mode == "local":
        from commands.run.execution.ledger import of_runs  # which reads runs, and is no part of them

        summary += (of_runs(runs) or "").splitlines()[-1:]
    lead = "# " if mode == "dry-run" else ""
    sys.stdout.write("".join(f"{lead}{line}\n" for line in summary))
    return failed


def _status(plan: RunPlan, go: Callable[[RunPlan], int]) -> int:
    """What came of a run; what it refuses after all is said at once."""
    try:
        return go(plan)
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
