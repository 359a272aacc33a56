"""Sweep files: known to Weights & Biases, made of fields that experiments know, run as a grid or point by point."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import cli
from commands.pipeline import run as command
from commands.pipeline.experiment import load, shipped
from commands.pipeline.synthesis import steps_of
from tests.slurm.launches import ROOT, jobs_in, launch, write_experiment

FIT = ROOT / "configs" / "sweeps" / "fit.yaml"
SWEEPS = sorted(set(FIT.parent.glob("*.yaml")) - {FIT})


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_every_point_of_a_sweep_file_changes_what_every_training_runs(path: Path, tmp_path: Path) -> None:
    config = yaml.safe_load(path.read_text())
    assert config["program"] == "cli.py" and config["method"] == "grid"
    words = config["command"]
    assert (ROOT / words[words.index("run") + 1]).is_file() and words[-1] == "${args_no_hyphens}"
    points = command._sweep(path)
    assert len(points) > 1
    trainings = set()
    for _, point in points:
        experiment = load(shipped("smcalflow-best-small"), point)
        assert experiment.table is None and experiment.sweep == path.stem
        assert experiment.point.keys() == config["parameters"].keys()
        stages = steps_of(experiment, tmp_path)
        trainings.add(json.dumps([stage.config for stage in stages if stage.kind == "fit"]))
    assert len(trainings) == len(points)


def test_what_a_point_sets_wins_over_what_the_experiment_says_of_single_systems() -> None:
    experiment = load(shipped("smcalflow-best-small"), {"privacy.max_grad_norm": 2.0})
    stages = {stage.name: stage.config for stage in steps_of(experiment, Path("run"))}
    for name in ("one_stage", "parse_tree", "parse2utterance"):
        config = stages[name]
        assert config is not None and config["privacy"]["max_grad_norm"] == 2.0


def test_a_sweep_of_one_training_runs_lightning_cli_in_the_run_that_the_agent_opened(
    tmp_path: Path, tiny_model: str, corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command as W&B's agent makes it: macros filled in, parameters in the place of ${args}."""
    config = yaml.safe_load(FIT.read_text())
    monkeypatch.setenv("WANDB_SWEEP_ID", "sweep1")
    monkeypatch.setenv("WANDB_RUN_ID", "point7")
    words = [word for word in config["command"] if word not in ("${env}", "${interpreter}", "${program}")]
    assert config["program"] == "cli.py" and words.pop() == "${args}"
    for name, spec in config["parameters"].items():
        words.append(f"--{name}={spec['values'][0] if 'values' in spec else spec['min']}")
    small = [f"--model.init_args.base_model={tiny_model}", f"--data.init_args.train_path={corpus}"]
    small += ["--data.init_args.batch_size=12", "--trainer.max_steps=1", "--trainer.limit_val_batches=1"]
    run_dir = words.pop(next(i for i, word in enumerate(words) if word.startswith("--run_dir=")))
    place = run_dir.replace("runs/sweeps", str(tmp_path))
    assert cli.main([*words, *small, place, "--trainer.accelerator=cpu"]) == 0
    stage = tmp_path / "fit" / "point7" / "one_stage"
    assert [path.name.split("-")[-1] for path in stage.glob("wandb/offline-run-*")] == ["point7"]
    assert (tmp_path / "fit" / "point7" / "ledger.jsonl").is_file()
    saved = yaml.safe_load((stage / "config.yaml").read_text())
    assert saved["model"]["init_args"]["optimizer"]["init_args"]["lr"] == 0.0002


def test_a_sweep_runs_every_point_with_its_settings_and_goes_on_after_a_failed_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parameters = {
        "epochs": {"values": ["{one_stage: 1}", "{one_stage: 2}"]},
        "data.batch_size": {"value": 64},
        "reference": {"value": "no/such/file.jsonl"},
        "data.train_path": {"value": "no/such/other.jsonl"},
    }
    path = write_experiment(tmp_path / "sweep.yaml", name="mine", parameters=parameters)
    assert launch("quickstart", tmp_path / "runs", "--local", f"--sweep={path}") == 1
    printed = capsys.readouterr().out
    assert printed.count("━━ batch_size=64,epochs=one_stage-") == 2
    assert printed.count("FAILED with status 2: error:") == 2 and "no/such/other.jsonl" in printed


def test_a_point_that_an_agent_asks_for_is_one_run_and_tells_the_agent_its_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import wandb

    def finish(runner: command.Runner, mode: str) -> int:
        asked.append((runner.run.name, runner.experiment.section("privacy"), runner.experiment.table))
        runner.run.mkdir(parents=True)
        metrics = {"one_stage": {"mauve": 0.5, "private/copies": 1, "notes": []}}
        (runner.run / "report.json").write_text(json.dumps({"metrics": metrics}))
        return 0

    class Run:
        summary: dict[str, Any] = {}

        def __enter__(self) -> SimpleNamespace:
            return SimpleNamespace(summary=self.summary)

        def __exit__(self, *_: object) -> None: ...

    asked: list[tuple] = []
    monkeypatch.setenv("WANDB_SWEEP_ID", "sweep1")
    monkeypatch.setattr(command.Runner, "go", finish)
    monkeypatch.setattr(wandb, "init", lambda config: Run())
    assert launch("quickstart", tmp_path, "--point", "privacy.max_grad_norm=0.5", "epsilon=3") == 0
    assert asked == [("epsilon=3,max_grad_norm=0.5", {"max_grad_norm": 0.5}, None)]
    assert Run.summary == {"one_stage/mauve": 0.5}


def test_a_sweep_is_one_array(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch("smcalflow", tmp_path / "runs", "--dry-run", f"--sweep={SWEEPS[1]}") == 0
    text = capsys.readouterr().out
    assert "--array=0-3%4" in text and not jobs_in(text)
    assert text.strip().endswith("epsilon=3,max_grad_norm=1.0,seed=1")
