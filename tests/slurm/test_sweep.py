"""Sweep files: known to Weights & Biases, made of arguments that the trainings know, run as a local grid."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import cli

ROOT = Path(__file__).resolve().parents[2]
FIT = ROOT / "configs" / "experiments" / "sweeps" / "fit.yaml"
SWEEPS = sorted(set(FIT.parent.glob("*.yaml")) - {FIT})
spec = importlib.util.spec_from_file_location("sweep", ROOT / "slurm" / "sweep.py")
assert spec is not None and spec.loader is not None
sweep = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sweep)


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_a_sweep_file_is_a_grid_over_known_settings(path: Path) -> None:
    config = yaml.safe_load(path.read_text())
    assert config["program"] == "slurm/sweep.py" and (ROOT / config["program"]).is_file()
    assert config["method"] == "grid"
    experiment = ROOT / config["command"][config["command"].index("--point") + 1]
    assert (experiment / "pipeline.env").is_file()
    for name in config["parameters"]:
        if "." not in name:
            assert name in ("epochs", "systems", "epsilon", "seed")
            continue
        node = {}
        for file in ("data", "dp_two_stage", "parse2utterance"):
            node |= yaml.safe_load((experiment / f"{file}.yaml").read_text())
        node["trainer"]["callbacks"] = (
            node["trainer"].pop("callbacks+", None)
            or yaml.safe_load((experiment / "dp_two_stage.yaml").read_text())["trainer"]["callbacks+"]
        )
        for key in name.split("."):
            node = node[key]
    points = sweep.points(config)
    assert len({sweep.folder_name(point) for point in points}) == len(points) > 1


def test_a_sweep_of_one_training_runs_lightning_cli_in_the_run_that_the_agent_opened(
    tmp_path: Path, tiny_model: str, corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command as W&B's agent makes it: macros filled in, parameters in the place of ${args}."""
    config = yaml.safe_load(FIT.read_text())
    monkeypatch.setenv("WANDB_SWEEP_ID", "sweep1")
    monkeypatch.setenv("WANDB_RUN_ID", "point7")
    command = [word for word in config["command"] if word not in ("${env}", "${interpreter}", "${program}")]
    assert config["program"] == "cli.py" and command.pop() == "${args}"
    for name, spec in config["parameters"].items():
        command.append(f"--{name}={spec['values'][0] if 'values' in spec else spec['min']}")
    small = [f"--model.init_args.base_model={tiny_model}", f"--data.init_args.train_path={corpus}"]
    small += ["--data.init_args.batch_size=12", "--trainer.max_steps=1", "--trainer.limit_val_batches=1"]
    run_dir = command.pop(next(i for i, word in enumerate(command) if word.startswith("--run_dir=")))
    place = run_dir.replace("runs/sweeps", str(tmp_path))
    assert cli.main([*command, *small, place, "--trainer.accelerator=cpu"]) == 0
    stage = tmp_path / "fit" / "point7" / "one_stage"
    assert [path.name.split("-")[-1] for path in stage.glob("wandb/offline-run-*")] == ["point7"]
    assert (tmp_path / "fit" / "point7" / "ledger.jsonl").is_file()
    saved = yaml.safe_load((stage / "config.yaml").read_text())
    assert saved["model"]["init_args"]["optimizer"]["init_args"]["lr"] == 0.0002


def test_a_grid_runs_every_point_with_its_settings(tmp_path: Path) -> None:
    """With an experiment that lacks its settings, so that the pipeline ends before it trains."""
    path = tmp_path / "sweep.yaml"
    parameters = {"epochs": {"values": ["1 1 1", "2 1 1"]}, "data.init_args.batch_size": {"value": 64}}
    path.write_text(yaml.safe_dump({"parameters": parameters, "command": []}))
    (tmp_path / "experiment").mkdir()
    command = [sys.executable, str(ROOT / "slurm" / "sweep.py"), "--local", str(path), str(tmp_path / "runs")]
    done = subprocess.run(
        [*command, "--experiment", str(tmp_path / "experiment")], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert done.stdout.count("━━ batch_size=64,epochs=") == 2
    assert done.stderr.count("FAILED with status 2") == 2
    assert "has no pipeline.env" in done.stderr
