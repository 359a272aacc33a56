"""Many runs of one experiment: one after the other, or as the tasks of one array."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from commands.run.code_copy import copy_code
from commands.run.experiment import save
from commands.run.runner import Mode, Runner
from commands.run.slurm import Site, queued, submit
from commands.run.values import Point
from commands.runs.yaml_files import PLACE
from doppel.errors import UserError


def folder_name(point: Point) -> str:
    """Names a combination by its values, ``epsilon=3,lr=0.002``: each field by as many last words as no other has."""
    plain = {_last_words(name, point): re.sub(r"[^\w.+-]+", "-", str(v)).strip("-") for name, v in point.items()}
    return ",".join(f"{name}={value}" for name, value in sorted(plain.items()))


def name_points(points: Sequence[Point]) -> list[tuple[str, Point]]:
    """The combinations of a grid with the names of their folders.

    Raises:
        UserError: Two would share a folder.
    """
    named: dict[str, Point] = {}
    for point in points:
        name = folder_name(point)
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
    make: Callable[[Point, str], Runner],
    runs: Path,
    site: Site,
    mode: Mode,
    check: bool,
) -> int:
    """Run every point: one after the other, or as the tasks of one array. The points after a failed one take place."""
    summary: list[str] = []
    waiting: dict[str, Runner] = {}
    failed = False
    for name, point in points:
        try:
            runner = make(point, name)
            if mode in ("local", "check"):
                sys.stdout.write(f"━━ {name}\n")
                status = runner.go(mode)
                done = "checked" if mode == "check" else "finished"
                summary.append(f"{name}: {done}" if status == 0 else f"{name}: FAILED with status {status}")
                failed = failed or status != 0
            elif not runner.waiting():
                summary.append(f"{name}: finished already")
            elif (job := queued(runs, name)) is not None:
                summary.append(f"{name}: job {job} is in the queue already")
            else:
                waiting[name] = runner
        except UserError as error:
            failed = True
            summary.append(f"{name}: {'FAILED with status 2: error' if mode == 'local' else 'REFUSED'}: {error}")
    if waiting:
        summary += _array(waiting, runs, site, mode, check)
    if mode == "local":
        from commands.run.ledger import of_runs  # which reads runs, and is no part of them

        summary += (of_runs(runs) or "").splitlines()[-1:]
    lead = "# " if mode == "dry-run" else ""
    sys.stdout.write("".join(f"{lead}{line}\n" for line in summary))
    return 1 if failed else 0


def _array(waiting: Mapping[str, Runner], runs: Path, site: Site, mode: Mode, check: bool) -> list[str]:
    """One array with a task for each run: a run has one task, and a task one run, so folders are never shared."""
    code = runs / "code"
    words = site.sbatch("fit", PLACE, code)
    words += [f"--array=0-{len(waiting) - 1}%{site.throttle}", f"--job-name={runs.name}.grid"]
    words.append(f"--output={runs}/slurm/grid-%A_%a.out")
    command = [f"{code}/slurm/array.sbatch", next(iter(waiting.values())).python, str(runs)]
    if mode == "dry-run":
        next(iter(waiting.values())).check_files()
        sys.stdout.write(f"# code is first copied to {code}, the experiment of every point to {runs}/configs\n")
        sys.stdout.write(
            " \\\n    ".join([words[0], *map(shlex.quote, words[1:]), shlex.join(command), *waiting]) + "\n"
        )
        return []
    if check:  # of one point: the others differ in values
        next(iter(waiting.values())).check()
    copy_code(code, site)
    for folder in (runs / "configs", runs / "slurm"):
        folder.mkdir(parents=True, exist_ok=True)
    for name, runner in waiting.items():
        overlays = list(dict.fromkeys([*runner.experiment.overlays, *site.overlays]))
        save(replace(runner.experiment, overlays=overlays), runs / "configs" / f"{name}.yaml")
    job = submit("grid", [*words, *command, *waiting], runs, site)
    for task, name in enumerate(waiting):
        (runs / "slurm" / f"{name}.job").write_text(f"{job}_{task}\n", encoding="utf-8")
    return [f"{name}: task {job}_{task}" for task, name in enumerate(waiting)]
