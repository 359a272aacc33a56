"""``python cli.py run``: an experiment, a grid of them, or a sweep."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from commands.launch.cluster import Site, load_site
from commands.launch.experiment import Experiment, load, read_yaml, save
from commands.launch.runner import PLACE, Mode, Runner, queued, snapshot, submit
from doppel.errors import UserError

Point = dict[str, Any]


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
    set: list[str] | None = None,
    grid: bool = False,
    epsilons: list[str] | None = None,
    seeds: list[int] | None = None,
    sweep: Path | None = None,
    point: list[str] | None = None,
    profile: str | None = None,
    nodes: int | None = None,
    site: Path | None = None,
    slurm: list[str] | None = None,
    no_check: bool = False,
) -> int:
    """Train, sample and evaluate an experiment: here, or as SLURM jobs.

    RUN_DIR receives everything: a folder for each trained model, synthetic.jsonl and the other samples, ledger.jsonl
    and report.json, experiment.yaml (what it was started with), configs/ (what every stage runs), code/ and slurm/
    (what jobs run, and their output). Given again, the command skips what is done and goes on where it stopped.

    Args:
        experiment: File of configs/experiments, or experiment.yaml of a run.
        run_dir: Folder of the run; of all runs, for a grid or a sweep.
        local: Run the stages here, one after the other; the default where there is no sbatch.
        submit: Submit a job for each stage, which waits for those that it needs; the default where there is sbatch.
        dry_run: Print what would be submitted, and write nothing.
        check: Only parse the configuration of every training and sampling.
        epsilon: Target ε in place of the experiment's; inf trains without privacy, on shuffled batches.
        seed: Seed of data order, dropout, sampling and evaluation; never of the privacy noise.
        systems: Systems in place of the experiment's.
        parser: Checkpoint of a semantic parser that annotates for the evaluation.
        set: Any field of the experiment, as NAME=VALUE: data.batch_size=64 epochs.parse_tree=2 num_samples=300. See
            configs/experiments/README.md.
        grid: Run every ε with every seed, each into RUN_DIR/epsE-seedS.
        epsilons: The grid's values of ε.
        seeds: The grid's seeds.
        sweep: Run every point of a file of configs/sweeps, each into a folder of RUN_DIR named after its values.
        point: One point of a sweep, as NAME=VALUE; what an agent of Weights & Biases calls.
        profile: Kind of node, a file of slurm/profiles.
        nodes: Nodes of a training.
        site: What the cluster is like, in place of slurm/site.yaml.
        slurm: Any field of the site, as NAME=VALUE: partition=gpu fit_time=12:00:00.
        no_check: Submit without --check, which comes first otherwise.
    """
    modes: dict[Mode, bool] = {"local": local, "submit": submit, "dry-run": dry_run, "check": check}
    chosen = [mode for mode, is_given in modes.items() if is_given]
    if len(chosen) > 1:
        raise UserError(f"--{chosen[0]} and --{chosen[1]} exclude one another: give one of them")
    mode = chosen[0] if chosen else "submit" if shutil.which("sbatch") and point is None else "local"
    if mode == "submit" and shutil.which("sbatch") is None:
        raise UserError("there is no sbatch here: submit where SLURM is, or give --local or --dry-run")
    os.umask(0o077)
    os.environ.setdefault("WANDB_SILENT", "true")
    own = {"epsilon": epsilon, "seed": seed, "systems": systems, "parser": parser}
    changes = _values(set) | {name: value for name, value in own.items() if value is not None}
    given = {"profile": profile, "nodes": nodes}
    cluster = load_site(site, _values(slurm) | {name: value for name, value in given.items() if value is not None})
    folder = Path(os.path.abspath(run_dir))
    if sweep is not None or grid or epsilons or seeds:
        if mode == "check":
            mode = "dry-run"
        points = _sweep(sweep) if sweep is not None else _grid(load(experiment, changes), epsilons, seeds)
        return _many(experiment, changes, points, folder, cluster, mode, not no_check)
    if point is not None:
        values = _values(point)
        return _one_point(
            _point_of(experiment, changes, values, "sweep"), folder / _folder_name(values), cluster, values
        )
    return Runner(load(experiment, changes), folder, cluster).go(mode, not no_check)


def _values(words: list[str] | None) -> dict[str, Any]:
    """NAME=VALUE words; values as YAML reads them."""
    values = {}
    for word in words or ():
        name, sign, text = word.removeprefix("--").partition("=")
        if not sign:
            raise UserError(f"{word!r} is no NAME=VALUE: give one such as data.batch_size=64")
        value = yaml.safe_load(text)
        number = re.fullmatch(r"[-+]?\d+(\.\d+)?e[-+]?\d+", text)  # 1e-3, which YAML takes for a word
        values[name] = float(text) if number else value
    return values


def _grid(experiment: Experiment, epsilons: list[str] | None, seeds: list[int] | None) -> dict[str, Point]:
    """Name of a run → what it sets."""
    return {
        f"eps{epsilon if isinstance(epsilon, str) else f'{epsilon:g}'}-seed{seed}": {"epsilon": epsilon, "seed": seed}
        for seed in seeds or experiment.seeds
        for epsilon in epsilons or experiment.epsilons
    }


def _sweep(path: Path) -> dict[str, Point]:
    """Points of a sweep file: all combinations of its parameters, each with one ``value`` or several ``values``."""
    content = read_yaml(path)
    choices = {name: given.get("values", [given.get("value")]) for name, given in content["parameters"].items()}
    points = [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]
    return {_folder_name(point): {**point, "sweep": str(content["name"])} for point in points}


def _folder_name(point: Mapping[str, Any]) -> str:
    """Names a point by its parameters: ``epsilon=3,lr=0.002``."""
    plain = {name.rsplit(".", 1)[-1]: re.sub(r"[^\w.+-]+", "-", str(value)).strip("-") for name, value in point.items()}
    return ",".join(f"{name}={value}" for name, value in sorted(plain.items()) if name != "sweep")


def _point_of(path: Path, changes: Mapping[str, Any], point: Mapping[str, Any], sweep: str | None) -> Experiment:
    """The experiment at a point; a sweep's stands in no table."""
    values = {name: yaml.safe_load(value) if isinstance(value, str) else value for name, value in point.items()}
    values.pop("sweep", None)
    own = {} if sweep is None else {"sweep": sweep, "point": dict(values), "table": None}
    return load(path, {**changes, **values, **own})


def _many(
    path: Path,
    changes: Mapping[str, Any],
    points: Mapping[str, Point],
    runs: Path,
    site: Site,
    mode: Mode,
    check: bool,
) -> int:
    """Run every point: one after the other, or as the tasks of one array. The points after a failed one take place."""
    summary, waiting, failed = [], {}, False
    for name, point in points.items():
        try:
            runner = Runner(_point_of(path, changes, point, point.get("sweep")), runs / name, site)
            if mode == "local":
                sys.stdout.write(f"━━ {name}\n")
                status = runner.go("local")
                summary.append(f"{name}: finished" if status == 0 else f"{name}: FAILED with status {status}")
                failed = failed or status != 0
            elif not runner.waiting():
                summary.append(f"{name}: finished already")
            elif (job := queued(runs, name)) is not None:
                summary.append(f"{name}: job {job} is in the queue already")
            else:
                waiting[name] = runner
        except UserError as error:
            failed = True
            what = "FAILED with status 2: error:" if mode == "local" else "NOT SUBMITTED:"
            summary.append(f"{name}: {what} {error}")
    if waiting:
        summary += _array(waiting, runs, site, mode, check)
    lead = "# " if mode == "dry-run" else ""
    sys.stdout.write("".join(f"{lead}{line}\n" for line in summary))
    return 1 if failed else 0


def _array(waiting: Mapping[str, Runner], runs: Path, site: Site, mode: Mode, check: bool) -> list[str]:
    """One array with a task for each run: a run has one task, and a task one run, so folders are never shared."""
    code = runs / "code"
    words = site.sbatch("fit", PLACE, code)
    words += [f"--array=0-{len(waiting) - 1}%{site.throttle}", "--job-name=grid"]
    words.append(f"--output={runs}/slurm/%x-%A_%a.out")
    command = [f"{code}/slurm/array.sbatch", next(iter(waiting.values())).python, str(runs)]
    if mode == "dry-run":
        sys.stdout.write(f"# code is first copied to {code}, the experiment of every point to {runs}/configs\n")
        sys.stdout.write(
            " \\\n    ".join([words[0], *map(shlex.quote, words[1:]), shlex.join(command), *waiting]) + "\n"
        )
        return []
    if check:  # of one point: the others differ in values
        next(iter(waiting.values())).check()
    snapshot(code, site)
    for folder in (runs / "configs", runs / "slurm"):
        folder.mkdir(parents=True, exist_ok=True)
    for name, runner in waiting.items():
        overlays = list(dict.fromkeys([*runner.experiment.overlays, *site.overlays]))
        save(replace(runner.experiment, overlays=overlays), runs / "configs" / f"{name}.yaml")
    job = submit("grid", [*words, *command, *waiting], runs, site)
    for task, name in enumerate(waiting):
        (runs / "slurm" / f"{name}.job").write_text(f"{job}_{task}\n", encoding="utf-8")
    return [f"{name}: task {job}_{task}" for task, name in enumerate(waiting)]


def _one_point(experiment: Experiment, folder: Path, site: Site, point: Mapping[str, Any]) -> int:
    """Run a point here, and send its metrics, all of synthetic text, to the run that the sweep's agent opened."""
    agent = {name: os.environ.pop(name) for name in ("WANDB_RUN_ID", "WANDB_SWEEP_ID") if name in os.environ}
    status = Runner(experiment, folder, site).go("local")
    os.environ.update(agent)
    if status == 0 and "WANDB_SWEEP_ID" in agent:
        import wandb

        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        with wandb.init(config=dict(point)) as wandb_run:
            for system, metrics in report["metrics"].items():
                numbers = {
                    k: v for k, v in metrics.items() if isinstance(v, int | float) and not k.startswith("private/")
                }
                wandb_run.summary.update({f"{system}/{name}": value for name, value in numbers.items()})
    return status
