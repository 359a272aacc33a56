"""A run as SLURM jobs that wait for one another, and the runs of a grid as the tasks of one array."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from commands.run.execution.code_copy import copy_code
from commands.run.execution.settle import write
from commands.run.execution.slurm import Site, submit
from commands.run.experiment.experiment import save
from commands.run.steps.run_plan import RunPlan
from commands.run_folder.places import PLACE
from commands.run_folder.steps import Step
from doppel.console.say import say


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
    words = site.sbatch("fit", PLACE)
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
    words = [*site.sbatch(step.kind, PLACE), f"--job-name={plan.run.name}.{step.name}"]
    words.append(f"--output={plan.run}/slurm/{step.name}-%j.out")
    after = [jobs[name] for name in step.needs if name in jobs]
    waits = ["--kill-on-invalid-dep=yes", f"--dependency=afterok:{':'.join(after)}"] if after else []
    mark = str(plan.run / ".done" / step.name) if step.is_once else "-"
    script = [f"{code}/slurm/{step.kind.replace('metrics', 'tool')}.sbatch", mark]
    return [words, waits, script, [site.interpreter, str(code / "cli.py"), *step.words(plan.run)]]


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
