"""The pipeline from data to report, on a tiny model."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = ROOT / "configs" / "experiments" / "quickstart"


def two_stage(*arguments: str, script: str = "two_stage.sh", **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1"} | variables
    command = ["bash", str(ROOT / "slurm" / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1200)


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory, tiny_model: str) -> Path:
    """The quickstart with a tiny model, few turns and one epoch a stage."""
    folder = tmp_path_factory.mktemp("experiment")
    for stage in ("one_stage", "parse_tree", "parse2utterance"):
        model = f"model:\n  init_args:\n    base_model: {tiny_model}\n    sampling:\n      max_new_tokens: 8\n"
        (folder / f"{stage}.yaml").write_text(f"trainer:\n  accelerator: cpu\n  max_epochs: 1\n{model}")
    for system, epochs in (("one_stage", "[1]"), ("two_stage", "[1, 1]")):
        text = (QUICKSTART / f"dp_{system}.yaml").read_text()
        lines = [f"      epochs: {epochs}" if "epochs:" in line else line for line in text.splitlines()]
        (folder / f"dp_{system}.yaml").write_text("\n".join(lines).replace("pld", "rdp"))
    text = (QUICKSTART / "data.yaml").read_text()
    (folder / "data.yaml").write_text(text.replace("num=1500", "num=120").replace("size: 150", "size: 30"))
    (folder / "pipeline.env").write_text(
        f"NUM_SAMPLES=30\nREFERENCE=embedded:test?num=120&seed=9\nFEATURIZER={tiny_model}\nEPOCHS_inf=2 1 1\n"
    )
    return folder


def test_pipeline_writes_samples_ledger_and_report_and_is_not_run_twice(experiment: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = two_stage("--local", str(experiment), str(run))
    assert first.returncode == 0, first.stderr[-3000:]
    report = json.loads((run / "report.json").read_text())
    privacy = report["privacy"]
    assert {"epsilon", "delta", "unit", "accountant", "noise_multiplier"} <= privacy.keys()
    assert 7 < privacy["epsilon"] <= 8
    assert privacy["epsilon_if_all_systems_are_released"] > privacy["epsilon"]
    assert report["metrics"]["one_stage"]["function_overlap"] is None
    assert report["metrics"]["two_stage"]["num_trees"] == 30
    assert not [name for system in report["metrics"].values() for name in system if name.startswith("private/")]
    assert {"timings", "versions"} <= report.keys()
    assert (report["experiment"], report["seed"], report["epsilon"]) == (experiment.name, 1, 8.0)
    assert report["data"]["num_units"] == 120
    assert report["base_model"] and report["commit"] and report["num_samples"] == 30
    samples = [json.loads(line) for line in (run / "synthetic.jsonl").read_text().splitlines()]
    trees = [json.loads(line)["parse"] for line in (run / "trees.jsonl").read_text().splitlines()]
    assert [sample["parse"] for sample in samples] == trees
    assert len((run / "synthetic_one_stage.jsonl").read_text().splitlines()) == 30
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 for path in run.rglob("*") if not path.is_symlink())
    ledger = (run / "ledger.jsonl").read_text()

    second = two_stage("--local", str(experiment), str(run))
    assert second.returncode == 0, second.stderr[-3000:]
    assert second.stdout.count("done already, skipped") == 8
    assert (run / "ledger.jsonl").read_text() == ledger

    for variables in ({"EPSILON": "3"}, {"SEED": "2"}, {"FIT_ARGS": "--trainer.max_steps=1"}):
        other = two_stage("--local", str(experiment), str(run), **variables)
        assert other.returncode == 2
        assert f"was started with {next(iter(variables))}=(none)" in other.stderr
    (run / "settings.env").unlink()  # a run that is older than this file
    assert two_stage("--local", str(experiment), str(run), EPSILON="3").returncode == 2


def test_a_grid_takes_epsilons_and_seeds_and_goes_on_after_a_failed_run(experiment: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    (runs / "eps0.5-seed4").mkdir(parents=True)
    (runs / "eps0.5-seed4" / "settings.env").write_text("EPSILON=7\n")  # fails at once
    variables = {"SYSTEMS": "one_stage", "EPSILONS": "0.5 inf", "SEEDS": "4", "NUM_SAMPLES": "8"}
    grid = two_stage("--local", str(experiment), str(runs), script="grid.sh", **variables)
    assert grid.returncode == 1, grid.stderr[-3000:]
    failed, finished = grid.stdout.strip().splitlines()[-2:]
    assert failed.startswith("eps0.5-seed4: FAILED with status 2: error:") and "EPSILON=7" in failed
    assert finished.startswith("epsinf-seed4: finished")
    report = json.loads((runs / "epsinf-seed4" / "report.json").read_text())
    assert report["privacy"] is None and report["epsilon"] is None
    assert (report["seed"], list(report["metrics"])) == (4, ["one_stage"])
    assert len(report["data"]["fingerprint"]) == 64
    assert not (runs / "epsinf-seed4" / "ledger.jsonl").exists()
    config = (runs / "epsinf-seed4" / "one_stage" / "config.yaml").read_text()
    assert "seed_everything: 4" in config and "sampling: shuffle" in config and "max_epochs: 2" in config


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--local"),
        (["--local", "configs"], "RUN_DIR"),
        (["--local", "no/such/folder", "run"], "no/such/folder"),
        (["--submit", "no/such/folder", "run"], "no/such/folder"),
        (["--sumbit", "configs/experiments/quickstart", "run"], "--submit"),
        (["--dry-run", "configs/experiments/quickstart", "runs/none", "PROFILE=dgx3"], "dgx2-v100"),
        (["--local", "configs/experiments/quickstart", "runs/none", "EPSILON=three"], "EPSILON is three"),
        (["--local", "configs/experiments/quickstart", "runs/none", "SYSTEMS=domain"], "domain"),
        (
            ["--local", "configs/experiments/quickstart", "runs/none", "SYSTEMS=constrained two_stage"],
            "name two_stage before",
        ),
    ],
)
def test_wrong_calls_are_explained(arguments: list[str], message: str) -> None:
    assert shutil.which("bash")
    variables = dict(a.split("=") for a in arguments if "=" in a)
    result = two_stage(*(a for a in arguments if "=" not in a), **variables)
    assert result.returncode == 2
    assert message in result.stderr.splitlines()[-1]
