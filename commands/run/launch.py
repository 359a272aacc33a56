"""``python cli.py run``: an experiment, or a grid of its values."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from commands.lightning.own_code import find_here
from commands.run.closing import tell_result
from commands.run.execution.execute import run_here
from commands.run.execution.forks import answer, can_fork
from commands.run.execution.jobs import name_points, run_grid, submit_runs
from commands.run.execution.settle import begin, make_folder, write
from commands.run.execution.slurm import Site, load_site
from commands.run.experiment.experiment import Point, joined, load, read_grid, read_values
from commands.run.experiment.settings import Experiment
from commands.run.preflight.preflight import preflight
from commands.run.steps.run_plan import Mode, RunPlan
from commands.run_folder.ownership import hold
from doppel.console.heard import LOG, written_down
from doppel.console.say import say
from doppel.errors import UserError
from doppel.settings.facts import facts_of

#: How an option gives a field.
_SET, _OPTION, _GRID = "--set {}={}", "--{} {}", "--grid {}={}"


def run(
    experiment: Path,
    run_dir: Path,
    *,
    local: bool = False,
    submit: bool = False,
    dry_run: bool = False,
    check: bool = False,
    epsilon: str | None = None,
    seed: int | None = None,
    systems: list[str] | None = None,
    parser: str | None = None,
    set: Annotated[list[str] | None, Experiment] = None,
    grid: list[str] | None = None,
    profile: str | None = None,
    nodes: int | None = None,
    site: Path | None = None,
    slurm: list[str] | None = None,
    verbose: bool = False,
) -> int:
    r"""Train, sample and evaluate an experiment: here, or as SLURM jobs.

    RUN_DIR receives everything: a folder for each system, with its models and samples.jsonl; synthetic.jsonl, a link to
    the samples of the main system; ledger.jsonl and report.json; experiment.yaml (what it was started with), configs/
    (what every step runs), code/ and slurm/ (what jobs run, and their output). Given again, the command skips what is
    done and goes on where it stopped.

    Example:
        python cli.py run configs/experiments/quickstart.yaml runs/quickstart
        python cli.py run configs/experiments/own-data.yaml runs/mine --check --epsilon 8 \
            --systems one_stage --set data.train_path=mine.csv data.unit=user reference=public.csv

    Args:
        experiment: File of configs/experiments, or experiment.yaml of a run.
        run_dir: Folder of the run; of all runs, for a grid.
        local: Run the stages here, one after the other; the default where there is no sbatch.
        submit: Submit a job for each stage, which waits for those that it needs; the default where there is sbatch.
        dry_run: Print what would be submitted, and write nothing.
        check: Start nothing: read the files, parse the configuration of every training and sampling, and tell of each
            system its units, batch size, steps and noise, and about how long its trainings would take on this machine.
        epsilon: Target ε in place of the experiment's; inf trains without privacy, on shuffled batches.
        seed: Seed of data order, dropout, sampling and evaluation; never of the privacy noise.
        systems: Systems in place of the experiment's: one_stage, labels, attributes, topics, evolution, two_stage,
            shuffled, unconstrained, and names that the experiment has under variants; of an
            adaptation also none and full, and of trainings alone parser and parser_low. See docs/guide.md.
        parser: Checkpoint of a semantic parser that annotates for the evaluation.
        set: Any field of the experiment, as NAME=VALUE: data.batch_size=64 epochs.parse_tree=2 num_samples=300; also
            as an option of its own, --data.batch_size=64. See docs/guide.md.
        grid: Fields with several values, as NAME=VALUE,VALUE: epsilon=3,8,inf seed=1,2,3 privacy.max_grad_norm=1,16.
            Runs every combination, each into a folder of RUN_DIR named after its values, such as epsilon=3,seed=1.
        profile: Kind of node, a file of slurm/profiles.
        nodes: Nodes of a training.
        site: What the cluster is like, in place of slurm/site.yaml.
        slurm: Any field of the site, as NAME=VALUE: partition=gpu fit_time=12:00:00.
        verbose: Also print every metric and the report's table, of a run here; they lie in the run folder anyway.
    """
    modes: dict[Mode, bool] = {"local": local, "submit": submit, "dry-run": dry_run, "check": check}
    chosen: list[Mode] = [mode for mode, is_given in modes.items() if is_given]
    if check and not dry_run and not (local and submit):  # of what is to run here, or is to be submitted
        chosen = ["check"]
    if len(chosen) > 1:
        raise UserError(f"--{chosen[0]} and --{chosen[1]} exclude one another: give one of them")
    has_slurm = shutil.which("sbatch") is not None
    mode: Mode = chosen[0] if chosen else "submit" if has_slurm else "local"
    if mode == "submit" and not has_slurm:
        raise UserError("there is no sbatch here: submit where SLURM is, or give --local or --dry-run")
    os.environ.setdefault("WANDB_SILENT", "true")
    find_here()
    flags = _given(epsilon=epsilon, seed=seed, systems=systems, parser=parser)
    sets = read_values(set)
    changes = joined(sets, flags, (_SET, _OPTION))
    nodes_and_more = _given(profile=profile, nodes=nodes)
    cluster = load_site(site, joined(read_values(slurm, facts_of(Site)), nodes_and_more, ("--slurm {}={}", _OPTION)))
    folder = Path(os.path.abspath(run_dir))

    def make(point: Point, name: str) -> RunPlan:
        settings = point if point.keys() <= {"epsilon", "seed"} else {**point, "table": None}  # is of no table
        own = joined(sets, point, (_SET, _GRID)) | joined(flags, point, (_OPTION, _GRID)) | settings
        return begin(replace(load(experiment, own), point=point), folder / name, cluster)

    is_here = local or not has_slurm

    def gate(plan: RunPlan) -> None:
        call = answer if mode == "local" and can_fork(cluster.interpreter) else None
        found = preflight(plan, mode, is_here, call)
        if mode == "check":
            from commands.run.preflight.estimate import tell_ready  # and what trains

            tell_ready(plan, found, is_here)

    def go(plan: RunPlan) -> int:
        if mode == "local":
            return execute(plan, cluster.interpreter, verbose)
        if mode != "check":
            submit_runs({"": plan}, plan.run, cluster, is_dry=mode == "dry-run")
        return 0

    if grid:
        status = run_grid(name_points(read_grid(grid)), make, gate, go, folder, cluster, mode)
    else:
        plan = begin(load(experiment, changes), folder, cluster)
        gate(plan)
        status = go(plan)
    if mode == "check" and status == 0:
        say("nothing was spent; next: the same command without --check")
    return status


def execute(plan: RunPlan, python: Sequence[str], is_verbose: bool = False) -> int:
    """Run the steps here, and say what came of them; exit status."""
    with hold(make_folder(plan.run)):
        start = time.time()
        write(plan, overwrite=True)
        with written_down(plan.run / LOG):
            status = run_here(plan.run, plan.steps, python, is_verbose)
            if status == 0:
                tell_result(plan, time.time() - start, is_verbose)
        return status


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
