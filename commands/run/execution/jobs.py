"""A run as SLURM jobs that wait for one another, and the runs of a grid: one after the other, or as one array."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from commands.run.execution.code_copy import copy_code
from commands.run.execution.settle import write
from commands.run.execution.slurm import Site, queued, submit
from commands.run.experiment.experiment import Point, save
from commands.run.steps.run_plan import Mode, RunPlan
from commands.run_folder.places import PLACE
from commands.run_folder.steps import Step
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
        try:
            status = go(plan)
        except UserError as error:  # what it refuses after all is said at once
            sys.stderr.write(f"error: {error}\n")
            status = 2
        failed = status if status in _ENDED else failed or min(status, 1)
        summary.append(f"{name}: finished" if status == 0 else f"{name}: FAILED with status {status}")
    if mode == "local":
        from commands.privacy.coverage import of_runs  # which reads runs, and is no part of them

        summary += (of_runs(runs) or "").splitlines()[-1:]
    lead = "# " if mode == "dry-run" else ""
    sys.stdout.write("".join(f"{lead}{line}\n" for line in summary))
    return failed


def submit_run(plan: RunPlan, site: Site, is_dry: bool) -> None:
    """Submit a job for every step that is not done, or print how; jobs wait for what they read."""
    code, lead = plan.run / "code", "#" if is_dry else "──"
    if is_dry:
        say(f"# code is first copied to {code}, configuration to {plan.run}/configs")
        _show_exported(site, code)
    else:
        write(plan, overwrite=copy_code(code, site))
        (plan.run / "slurm").mkdir(exist_ok=True)
    jobs: dict[str, str] = {}
    for step in plan.steps:
        if step.is_once and plan.is_done(step.name):
            say(f"{lead} {step.name}: done already, skipped")
        elif step.name in plan.jobs:
            jobs[step.name] = plan.jobs[step.name]
            say(f"{lead} {step.name}: job {jobs[step.name]} is in the queue already")
        else:
            words = _sbatch(step, plan, site, jobs)
            jobs[step.name] = _shown(step, words) if is_dry else submit(step.name, sum(words, []), plan.run, site)
    if not is_dry:
        say(
            f"── squeue --me shows the jobs; their output is in {plan.run}/slurm. "
            "Give the command again to go on after a failure."
        )


def submit_array(works: Mapping[str, RunPlan], runs: Path, site: Site, is_dry: bool) -> list[str]:
    """Submit one array with a task for each run of a folder, by name, so that no two share one; a line for each."""
    code = runs / "code"
    words = site.sbatch(
        "fit", PLACE, [model for plan in works.values() for step in plan.steps for model in _models(step)]
    )
    words += [f"--array=0-{len(works) - 1}%{site.throttle}", f"--job-name={runs.name}.grid"]
    words.append(f"--output={runs}/slurm/grid-%A_%a.out")
    command = [f"{code}/slurm/array.sbatch", site.interpreter, str(runs)]
    if is_dry:
        say(f"# code is first copied to {code}, the experiment of every point to {runs}/configs")
        _show_exported(site, code)
        sys.stdout.write(" \\\n    ".join([words[0], *map(shlex.quote, words[1:]), shlex.join(command), *works]) + "\n")
        return []
    copy_code(code, site)
    for folder in (runs / "configs", runs / "slurm"):
        folder.mkdir(parents=True, exist_ok=True)
    for name, plan in works.items():
        overlays = list(dict.fromkeys([*plan.experiment.overlays, *site.overlays]))
        save(replace(plan.experiment, overlays=overlays), runs / "configs" / f"{name}.yaml")
    job = submit("grid", [*words, *command, *works], runs, site)
    for task, name in enumerate(works):
        (runs / "slurm" / f"{name}.job").write_text(f"{job}_{task}\n", encoding="utf-8")
    return [f"{name}: task {job}_{task}" for task, name in enumerate(works)]


def _sbatch(step: Step, plan: RunPlan, site: Site, jobs: Mapping[str, str]) -> list[list[str]]:
    """The job of a step: sbatch with its options, what it waits for, the script, and the command."""
    code = plan.run / "code"
    missing = [name for name in step.needs if name not in jobs and not plan.is_done(name)]
    assert not missing, f"{step.name} stands before {missing}, which it needs"
    words = [*site.sbatch(step.kind, PLACE, _models(step)), f"--job-name={plan.run.name}.{step.name}"]
    words.append(f"--output={plan.run}/slurm/{step.name}-%j.out")
    after = [jobs[name] for name in step.needs if name in jobs]
    waits = ["--kill-on-invalid-dep=yes", f"--dependency=afterok:{':'.join(after)}"] if after else []
    mark = str(plan.run / ".done" / step.name) if step.is_once else "-"
    script = [f"{code}/slurm/{step.kind.replace('metrics', 'tool')}.sbatch", mark]
    return [words, waits, script, [site.interpreter, str(code / "cli.py"), *step.words(plan.run)]]


def _models(step: Step) -> list[dict[str, Any]]:
    """Arguments of the model that a training or a sampling loads."""
    arguments = (step.config.get("model") or {}).get("init_args")
    return [arguments] if arguments and step.kind in ("fit", "predict") else []


def _show_exported(site: Site, code: Path) -> None:
    for name, value in site.exported(code).items():
        say(f"export {name}={shlex.quote(value)}")


def _shown(step: Step, job: list[list[str]]) -> str:
    """Print how a job would be submitted; the variable that holds its id."""
    (_, *options), waits, script, command = job
    variable = f"JOB_{re.sub('[^A-Za-z0-9]', '_', step.name)}"
    lines = [*map(shlex.quote, options), *waits, shlex.join(script), shlex.join(command)]  # waits name variables
    say(f"{variable}=$(sbatch \\\n    " + " \\\n    ".join(lines) + ")")
    return f"${variable}"
