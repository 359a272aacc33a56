#!/usr/bin/env python
"""Sweeps over settings of the pipeline, as a local grid or as the program of a Weights & Biases sweep.

    slurm/sweep.py --submit SWEEP.yaml RUNS_DIR [--experiment CONFIG_DIR]    every point, as one SLURM job array
    slurm/sweep.py --dry-run SWEEP.yaml RUNS_DIR [--experiment CONFIG_DIR]   print what would be submitted
    slurm/sweep.py --local SWEEP.yaml RUNS_DIR [--experiment CONFIG_DIR]     every point, one after the other
    slurm/sweep.py --point CONFIG_DIR RUNS_DIR --NAME=VALUE …                one point; the sweep files call this

A point is one run of slurm/two_stage.sh. Parameters with dots are LightningCLI arguments, given to every training;
the others (epochs, epsilon, seed, systems) are variables of the pipeline. A finished point is skipped, a failed one
does not stop the others; the exit status is then 1. The samples are synthetic, so that choosing by them costs no
privacy; choosing among several private runs spends what all of them spent.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]


def points(sweep: Mapping[str, dict[str, dict[str, object]]]) -> list[dict[str, str]]:
    """All combinations of the values of a grid, each parameter with one ``value`` or several ``values``."""
    choices = {
        name: list(spec["values"]) if "values" in spec else [spec["value"]]
        for name, spec in sweep["parameters"].items()
    }  # type: ignore[call-overload]
    return [dict(zip(choices, map(str, values), strict=True)) for values in itertools.product(*choices.values())]


def folder_name(point: Mapping[str, str]) -> str:
    """Names a point by its parameters: ``lr=0.002,epsilon=3``."""
    return ",".join(f"{name.rsplit('.', 1)[-1]}={value.replace(' ', '-')}" for name, value in sorted(point.items()))


def variables_of(point: Mapping[str, str]) -> dict[str, str]:
    """The pipeline's variables at a point; its arguments stand after those of ``FIT_ARGS``."""
    arguments = [f"--{name}={value}" for name, value in point.items() if "." in name]
    variables = {name.upper(): value for name, value in point.items() if "." not in name}
    return variables | {"FIT_ARGS": " ".join([os.environ.get("FIT_ARGS", ""), *arguments]).strip()}


def run_point(experiment: Path, run: Path, point: Mapping[str, str]) -> int:
    """Run the pipeline at one point; its exit status."""
    environment = {name: value for name, value in os.environ.items() if name not in ("WANDB_RUN_ID", "WANDB_SWEEP_ID")}
    return subprocess.call(
        ["bash", str(ROOT / "slurm" / "two_stage.sh"), "--local", str(experiment), str(run)],
        env=environment | variables_of(point),
    )


def run_array(mode: str, experiment: Path, runs: Path, sweep: Mapping[str, dict[str, dict[str, object]]]) -> int:
    """Give all points to slurm/grid.sh, whose array has a task for each; its exit status."""
    lines = [
        shlex.join([folder_name(point), *(f"{name}={value}" for name, value in variables_of(point).items())])
        for point in points(sweep)
    ]
    return subprocess.call(["bash", str(ROOT / "slurm" / "grid.sh"), mode, str(experiment), str(runs), *lines])


def log_to_wandb(run: Path, point: Mapping[str, str]) -> None:
    """Send the metrics of a finished point, all of synthetic text, to the run that the sweep's agent opened."""
    import wandb

    report = json.loads((run / "report.json").read_text(encoding="utf-8"))
    with wandb.init(config=dict(point)) as wandb_run:
        for system, metrics in report["metrics"].items():
            public = {k: v for k, v in metrics.items() if isinstance(v, int | float) and not k.startswith("private/")}
            wandb_run.summary.update({f"{system}/{name}": value for name, value in public.items()})


def main() -> int:
    """Run a sweep or one point of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_mutually_exclusive_group(required=True)
    for mode, what in (("submit", "submit the whole grid"), ("dry-run", "print it"), ("local", "run it here")):
        modes.add_argument(f"--{mode}", nargs=2, type=Path, metavar=("SWEEP", "RUNS_DIR"), help=what)
    modes.add_argument("--point", nargs=2, type=Path, metavar=("CONFIG_DIR", "RUNS_DIR"), help="run one point")
    parser.add_argument("--experiment", type=Path, help="experiment in place of the sweep's")
    args, rest = parser.parse_known_args()
    if args.point:
        experiment, runs = args.point
        point = dict(option.removeprefix("--").split("=", 1) for option in rest)
        run = runs / folder_name(point)
        status = run_point(experiment, run, point)
        if status == 0 and "WANDB_SWEEP_ID" in os.environ:
            log_to_wandb(run, point)
        return status
    if rest:
        parser.error(f"unknown arguments {' '.join(rest)}: parameters of a sweep stand in its file")
    path, runs = args.local or args.submit or args.dry_run
    sweep = yaml.safe_load(path.read_text(encoding="utf-8"))
    experiment = args.experiment or ROOT / sweep["command"][sweep["command"].index("--point") + 1]
    if not args.local:
        return run_array("--submit" if args.submit else "--dry-run", experiment, runs, sweep)
    failed = {}
    for point in points(sweep):
        sys.stdout.write(f"━━ {folder_name(point)}\n")
        sys.stdout.flush()
        status = run_point(experiment, runs / folder_name(point), point)
        if status:
            failed[folder_name(point)] = status
    for name, status in failed.items():
        sys.stderr.write(f"{name}: FAILED with status {status}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
