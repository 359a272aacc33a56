"""Many runs of one experiment: one after the other, or as the tasks of one array."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

from commands.run.jobs import submit_array
from commands.run.slurm import Site, queued
from commands.run.values import Point
from commands.run.work import Work
from doppel.errors import UserError

Mode = Literal["local", "submit", "dry-run", "check"]


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
    make: Callable[[Point, str], Work],
    go: Callable[[Work], int],
    runs: Path,
    site: Site,
    mode: Mode,
    check: bool,
) -> int:
    """Run every point: one after the other, or as the tasks of one array. The points after a failed one take place."""
    summary: list[str] = []
    waiting: dict[str, Work] = {}
    failed = False
    for name, point in points:
        try:
            work = make(point, name)
            if mode in ("local", "check"):
                sys.stdout.write(f"━━ {name}\n")
                status = go(work)
                done = "checked" if mode == "check" else "finished"
                summary.append(f"{name}: {done}" if status == 0 else f"{name}: FAILED with status {status}")
                failed = failed or status != 0
            elif not work.waiting:
                summary.append(f"{name}: finished already")
            elif (job := queued(runs, name)) is not None:
                summary.append(f"{name}: job {job} is in the queue already")
            else:
                waiting[name] = work
        except UserError as error:
            failed = True
            summary.append(f"{name}: {'FAILED with status 2: error' if mode == 'local' else 'REFUSED'}: {error}")
    if waiting:
        summary += submit_array(waiting, runs, site, mode == "dry-run", check)
    if mode == "local":
        from commands.run.ledger import of_runs  # which reads runs, and is no part of them

        summary += (of_runs(runs) or "").splitlines()[-1:]
    lead = "# " if mode == "dry-run" else ""
    sys.stdout.write("".join(f"{lead}{line}\n" for line in summary))
    return 1 if failed else 0
