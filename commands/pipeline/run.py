"""``python cli.py run``: an experiment, or a grid of its values."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from commands.pipeline.experiment import load, save
from commands.pipeline.runner import PLACE, Mode, Runner, queued, snapshot, submit
from commands.pipeline.slurm import Site, load_site
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
    grid: list[str] | None = None,
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
        run_dir: Folder of the run; of all runs, for a grid.
        local: Run the stages here, one after the other; the default where there is no sbatch.
        submit: Submit a job for each stage, which waits for those that it needs; the default where there is sbatch.
        dry_run: Print what would be submitted, and write nothing.
        check: Only parse the configuration of every training and sampling.
        epsilon: Target ε in place of the experiment's; inf trains without privacy, on shuffled batches.
        seed: Seed of data order, dropout, sampling and evaluation; never of the privacy noise.
        systems: Systems in place of the experiment's.
        parser: Checkpoint of a semantic parser that annotates for the evaluation.
        set: Any field of the experiment, as NAME=VALUE: data.batch_size=64 epochs.parse_tree=2 num_samples=300. See
            docs/guide.md.
        grid: Fields with several values, as NAME=VALUE,VALUE: epsilon=3,8,inf seed=1,2,3 privacy.max_grad_norm=1,16.
            Runs every combination, each into a folder of RUN_DIR named after its values, such as epsilon=3,seed=1.
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
    has_slurm = shutil.which("sbatch") is not None
    mode = chosen[0] if chosen else "submit" if has_slurm else "local"
    if mode == "submit" and not has_slurm:
        raise UserError("there is no sbatch here: submit where SLURM is, or give --local or --dry-run")
    os.environ.setdefault("WANDB_SILENT", "true")
    changes = read_values(set) | _given(epsilon=epsilon, seed=seed, systems=systems, parser=parser)
    cluster = load_site(site, read_values(slurm) | _given(profile=profile, nodes=nodes))
    folder = Path(os.path.abspath(run_dir))

    def make(point: Point, name: str = "") -> Runner:
        own = point if point.keys() <= {"epsilon", "seed"} else {**point, "table": None}  # it is none of the table's
        return Runner(load(experiment, {**changes, **own}), folder / name, cluster)

    if grid:
        points = [(_folder_name(point), point) for point in read_grid(grid)]
        return _many(points, make, folder, cluster, mode, not no_check)
    return make({}).go(mode, not no_check)


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def read_values(words: list[str] | None) -> Point:
    """Fields of an experiment and their values, from NAME=VALUE words.

    Raises:
        UserError: A word is no such pair.
    """
    return {name: _value(text) for name, text in _pairs(words or [])}


def read_grid(words: list[str]) -> list[Point]:
    """All combinations of the values of fields, from NAME=VALUE,VALUE words; the last field varies fastest.

    Raises:
        UserError: A word is no such pair, or its values are no YAML.
    """
    choices = {name: [_value(value) for value in _value(f"[{text}]")] for name, text in _pairs(words)}
    return [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]


def _pairs(words: list[str]) -> Iterator[tuple[str, str]]:
    for word in words:
        name, sign, text = word.removeprefix("--").partition("=")
        if not sign:
            raise UserError(f"{word!r} is no NAME=VALUE: give one such as data.batch_size=64")
        yield name, text


def _value(text: Any) -> Any:
    """A text as YAML reads it, and 1e-3 as the number that it is."""
    try:
        value = yaml.safe_load(text) if isinstance(text, str) else text
    except yaml.YAMLError as error:
        raise UserError(f"{text!r} is no YAML: {' '.join(str(error).split())}") from error
    return float(value) if isinstance(value, str) and re.fullmatch(r"[-+]?[\d.]+e[-+]?\d+", value) else value


def _folder_name(point: Point) -> str:
    """Names a combination by its values: ``epsilon=3,lr=0.002``."""
    plain = {name.rsplit(".", 1)[-1]: re.sub(r"[^\w.+-]+", "-", str(v)).strip("-") for name, v in point.items()}
    return ",".join(f"{name}={value}" for name, value in sorted(plain.items()))


def _many(
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
            summary.append(f"{name}: {'FAILED with status 2: error' if mode == 'local' else 'REFUSED'}: {error}")
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
