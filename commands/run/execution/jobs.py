"""A run as SLURM jobs that wait for one another, and the runs of a grid: one after the other, or as arrays."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from commands.run.execution.code_copy import copy_code
from commands.run.execution.execute import ENDED
from commands.run.execution.settle import write
from commands.run.execution.slurm import Site, refuse_unfit, submit
from commands.run.experiment.experiment import Point
from commands.run.steps.run_plan import Mode, RunPlan
from commands.run_folder.places import ROOT
from commands.run_folder.steps import Kind, Step
from doppel.console.say import say
from doppel.errors import UserError
from doppel.files import write_text


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
    """Run every point that may start: one after the other, or as tasks of arrays.

    All are made and asked first whether they may (``gate``, which raises UserError), before any of them spends. The
    points after a failed one take place, but not after one that was interrupted, or ended from without.

    Returns:
        Exit status: of ``go``, that of one which was ended, else 1 where one has failed.
    """
    summary: list[str] = []
    ready: dict[str, RunPlan] = {}
    failed, is_here = 0, mode in ("local", "check")
    for name, point in points:
        if is_here:
            say(f"━━ {name}")
        try:
            plan = make(point, name)
            if not is_here and all(step.name in plan.jobs for step in plan.waiting):
                summary.append(f"{name}: {'in the queue' if plan.waiting else 'finished'} already")
            else:
                gate(plan)
                ready[name] = plan
        except UserError as error:
            failed = 1
            summary.append(f"{name}: {'FAILED with status 2: error' if mode == 'local' else 'REFUSED'}: {error}")
    if mode == "check":
        summary += [f"{name}: checked" for name in ready]
    elif ready and mode != "local":
        submit_runs(ready, runs, site, mode == "dry-run")
    for name, plan in ready.items() if mode == "local" else ():
        if failed in ENDED:
            summary.append(f"{name}: not started")
            continue
        say(f"━━ {name}")
        try:
            status = go(plan)
        except UserError as error:  # what it refuses after all is said at once
            sys.stderr.write(f"error: {error}\n")
            status = 2
        failed = status if status in ENDED else failed or min(status, 1)
        summary.append(f"{name}: finished" if status == 0 else f"{name}: FAILED with status {status}")
    if mode == "local":
        from commands.privacy.coverage import of_runs  # which reads runs, and is no part of them

        summary += (of_runs(runs) or "").splitlines()[-1:]
    lead = "# " if mode == "dry-run" else ""
    sys.stdout.write("".join(f"{lead}{line}\n" for line in summary))
    return failed


def submit_runs(plans: Mapping[str, RunPlan], folder: Path, site: Site, is_dry: bool) -> None:
    """Submit a job for every step that is not done, or print how; jobs wait for what they read.

    For the points of a grid a job is an array with a task for each point, so that each step asks for what it needs: a
    task waits for those of its own point. A point keeps its number, so a later submission waits for an earlier one.

    Args:
        plans: Of the points of a grid by name; of a single run under the empty name.
        folder: Of the run, or of all runs of the grid: the code goes there.
        site: The cluster.
        is_dry: Whether it is printed alone.

    Raises:
        UserError: sbatch refuses a job.
    """
    code, is_grid = folder / "code", "" not in plans
    place = f"{folder}/POINT" if is_grid else folder
    if is_dry:
        say(f"# code is first copied to {code}, configuration to {place}/configs")
    else:
        asked = [
            step for plan in plans.values() for step in plan.steps if step.name not in plan.jobs and plan.is_due(step)
        ]
        refuse_unfit({step.name: [*site.sbatch([step]), _script(ROOT, step.kind)] for step in asked})
        is_new = copy_code(code)
        for plan in plans.values():
            write(plan, overwrite=is_new)
            (plan.run / "slurm").mkdir(exist_ok=True)
        (folder / "slurm").mkdir(exist_ok=True)
    numbers = _numbered(plans, folder / "slurm" / "points", is_dry) if is_grid else {"": 0}
    variables = site.exported(code) | ({"DOPPEL_POINTS": str(folder / "slurm" / "points")} if is_grid else {})
    for name, value in variables.items() if is_dry else ():
        say(f"export {name}={shlex.quote(value)}")
    jobs: dict[tuple[str, str], str] = {}
    for name in _in_order(plans.values()):
        waiting: dict[tuple[str, ...], dict[str, Step]] = {}  # what is waited for → points
        for point, plan in plans.items():
            step, said = plan.step(name), f"{'#' if is_dry else '──'} {point and f'{point}: '}{name}: "
            if step is None:
                continue
            if not plan.is_due(step):
                say(f"{said}done already, skipped")
            elif name in plan.jobs:
                jobs[point, name] = plan.jobs[name]
                say(f"{said}job {plan.jobs[name]} is in the queue already")
            else:
                after = (jobs[point, other] for other in step.needs if not plan.is_done(other))
                waiting.setdefault(tuple(_after(job, is_grid) for job in after), {})[point] = step
        for number, (waits, steps) in enumerate(waiting.items()):
            words = _sbatch(steps, folder, site, waits)
            if is_grid:
                words[0].append(f"--array={','.join(str(numbers[point]) for point in steps)}%{site.throttle}")
            variable = f"JOB_{re.sub('[^A-Za-z0-9]', '_', name)}{f'_{number + 1}' if number else ''}"
            job = _shown(variable, words) if is_dry else submit(name, sum(words, []), variables)
            for point in steps:
                jobs[point, name] = f"{job}_{numbers[point]}" if is_grid else job
                if not is_dry:
                    (plans[point].run / "slurm" / f"{name}.job").write_text(f"{jobs[point, name]}\n", encoding="utf-8")
                    say(f"── {point and f'{point}: '}{name}: {'task' if is_grid else 'job'} {jobs[point, name]}")
    if not is_dry:
        say(
            f"── squeue --me shows the jobs; their output is in {place}/slurm. "
            "Give the command again to go on after a failure."
        )


def _in_order(plans: Iterable[RunPlan]) -> list[str]:
    """Names of the steps of several runs, each in an order of all of them."""
    names: list[str] = []
    for plan in plans:
        place = 0
        for step in plan.steps:
            if step.name not in names:
                names.insert(place, step.name)
            place = names.index(step.name) + 1
    return names


def _numbered(plans: Iterable[str], file: Path, is_dry: bool) -> dict[str, int]:
    """Number the points of a grid by the lines of a file, to which new ones are added."""
    known = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    known += [name for name in plans if name not in known]
    if not is_dry:
        write_text(file, "".join(f"{name}\n" for name in known))
    return {name: number for number, name in enumerate(known)}


def _after(job: str, is_grid: bool) -> str:
    """What a job, or each task of an array, waits for: the end of a job, or of the same task of another array."""
    array, _, task = job.rpartition("_")
    return f"aftercorr:{array}" if is_grid and array and task.isdigit() else f"afterok:{job}"


def _sbatch(steps: Mapping[str, Step], folder: Path, site: Site, waits: Sequence[str]) -> list[list[str]]:
    """The job of a step in one run, or in several: sbatch with its options, what it waits for, script, command."""
    step, is_grid, code = next(iter(steps.values())), "" not in steps, folder / "code"
    run = folder / "{point}" if is_grid else folder
    place = str(folder).replace("%", "%%")  # of a % alone SLURM makes something else
    output = f"--output={place}/slurm/{step.name}-{'%A_%a' if is_grid else '%j'}.out"
    words = [*site.sbatch([*steps.values()]), f"--job-name={folder.name}.{step.name}", output]
    after = ["--kill-on-invalid-dep=yes", f"--dependency={','.join(waits)}"] if waits else []
    script = [_script(code, step.kind), str(run), step.name]
    return [words, after, script, [*site.interpreter, str(code / "cli.py"), *step.words(run)]]


def _script(code: Path, kind: Kind) -> str:
    return f"{code}/slurm/{kind.replace('metrics', 'tool')}.sbatch"


def _shown(variable: str, job: list[list[str]]) -> str:
    """Print how a job would be submitted; the variable that holds its id."""
    (_, *options), waits, script, command = job
    lines = [*map(shlex.quote, options), *waits, shlex.join(script), shlex.join(command)]  # waits name variables
    say(f"{variable}=$(sbatch \\\n    " + " \\\n    ".join(lines) + ")")
    return f"${variable}"
