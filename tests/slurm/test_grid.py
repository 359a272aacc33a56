"""Grids: every combination of values is a run with these settings, here or as one array."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from commands.run.execution.jobs import name_points
from commands.run.experiment.experiment import load, read_grid, shipped
from commands.run.steps.recipes import steps_of
from doppel.errors import UserError
from tests.slurm.launches import jobs_in, launch


def test_a_grid_is_every_combination_of_its_values() -> None:
    points = read_grid(["epsilon=3,inf", "seed=1,2", "model.optimizer.lr=2e-4"])
    assert [(point["epsilon"], point["seed"]) for point in points] == [(3, 1), (3, 2), ("inf", 1), ("inf", 2)]
    assert all(point["model.optimizer.lr"] == 2e-4 for point in points)
    assert load(shipped("quickstart"), points[-1]).epsilon == math.inf
    epochs = read_grid(["epochs={parse_tree: 9, parse2utterance: 1},{parse_tree: 8, parse2utterance: 2}"])
    assert [point["epochs"]["parse_tree"] for point in epochs] == [9, 8]
    for wrong in ("epsilon", "epsilon=[3", "data={a"):
        with pytest.raises(UserError):
            read_grid([wrong])


@pytest.mark.parametrize(
    "words",
    [
        "privacy.max_grad_norm=0.05,0.1",
        "data.batch_size=512,1024",
        "model.optimizer.lr=2e-4,5e-4",
        "epochs.parse_tree=1,2",
    ],
)
def test_every_point_of_a_grid_changes_what_a_training_runs(words: str, tmp_path: Path) -> None:
    trainings = set()
    for point in read_grid([words]):
        steps = steps_of(load(shipped("smcalflow-best-small"), point), tmp_path)
        trainings.add(json.dumps([step.config for step in steps if step.kind == "fit"]))
    assert len(trainings) == 2


def test_every_point_of_a_grid_has_a_folder_of_its_own() -> None:
    rates = ["stages.one_stage.model.optimizer.lr=1e-3,2e-3", "model.optimizer.lr=1e-3,2e-3", "epsilon=3"]
    names = [name for name, _ in name_points(read_grid(rates))]
    assert len(set(names)) == 4 and all("epsilon=3" in name for name in names)
    with pytest.raises(UserError, match="would both be the run"):
        name_points(read_grid(["data.train_path=a/b,a-b"]))


def test_seed_0_is_no_other_seed(tmp_path: Path) -> None:
    steps = {step.name: step for step in steps_of(load(shipped("adaptation-weather-small"), {"seed": 0}), tmp_path)}
    assert steps["partition"].config["seed"] == 0


def test_what_a_point_sets_wins_over_what_the_experiment_says_of_single_systems() -> None:
    experiment = load(shipped("smcalflow-best-small"), {"privacy.max_grad_norm": 2.0})
    configs = {step.name: step.config for step in steps_of(experiment, Path("run"))}
    for name in ("one_stage-one_stage", "two_stage-parse_tree", "two_stage-parse2utterance"):
        config = configs[name]
        assert config is not None and config["privacy"]["max_grad_norm"] == 2.0


def test_a_grid_goes_on_after_a_failed_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--grid", "epochs={one_stage: 1},{one_stage: 2}", "data.batch_size=64")
    files = ("--set", "reference=no/such/file.jsonl", "data.train_path=no/such/other.jsonl")
    assert launch("quickstart", tmp_path / "runs", "--local", *words, *files) == 1
    printed = capsys.readouterr().out
    assert printed.count("━━ batch_size=64,epochs=one_stage-") == 2
    assert printed.count("FAILED with status 2: error:") == 2 and "no/such/other.jsonl" in printed


def test_a_step_of_a_grid_is_one_array_that_asks_for_what_it_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for check in ("check_files", "check_models"):  # neither files nor models are here
        monkeypatch.setattr(f"commands.run.preflight.preflight.{check}", lambda plan: None)
    words = ("--grid", "privacy.max_grad_norm=0.05,0.1", "epsilon=3,inf", "--systems", "one_stage")
    assert launch("smcalflow", tmp_path / "runs", "--dry-run", *words, "--profile=dgx-a100") == 0
    jobs = [(job.name, job) for job in jobs_in(capsys.readouterr().out)]
    of_all = ["--array=0,1,2,3%4"]
    told = {name: [word for word in job.options if word.startswith(("--array", "--gres"))] for name, job in jobs}
    assert told["one_stage-one_stage"] == ["--gres=gpu:a100:8", *of_all]
    assert told["one_stage-evaluate"] == ["--gres=gpu:a100:1", *of_all]
    assert told["one_stage-words"] == ["--array=0,2%4"], "without privacy none are counted, and no GPU is held"
    reports = [job for name, job in jobs if name == "report"]
    assert [job.after for job in reports] == [["one_stage-words", "one_stage-evaluate"], ["one_stage-evaluate"]]
    assert "--array=1,3%4" in reports[1].options
    run = f"{tmp_path}/runs/{{point}}"
    assert jobs[0][1].run == run and f"{run}/configs/one_stage-one_stage.yaml" in jobs[0][1].command


def test_only_other_values_of_epsilon_and_seed_stand_in_the_table_of_the_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = []
    monkeypatch.setattr(
        "commands.run.launch.run_grid",
        lambda points, make, *_: tables.extend(make(point, name).experiment.table for name, point in points),
    )
    monkeypatch.setenv("DOPPEL_DATA", "data")
    for grid in (["epsilon=3", "seed=1"], ["epsilon=3", "privacy.max_grad_norm=1"]):
        launch("smcalflow-small", tmp_path, "--dry-run", "--grid", *grid)
    assert tables == ["main", None]
