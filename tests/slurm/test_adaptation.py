"""The end-to-end adaptation: from annotated turns to parsers that know, or do not know, a function."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from doppel.errors import UserError
from doppel.privacy.accounting import Accountant
from doppel.privacy.ledger import BudgetExceededError, Ledger
from doppel.privacy.spec import plan

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENTS = sorted((ROOT / "configs" / "experiments").glob("adaptation-*"))
SMALL = ROOT / "configs" / "experiments" / "adaptation-weather-small"


def adaptation(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1"} | variables
    command = ["bash", str(ROOT / "slurm" / "adaptation.sh"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1800)


def settings(experiment: Path) -> dict[str, str]:
    lines = (experiment / "pipeline.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


@pytest.mark.parametrize(
    ("arguments", "variables", "message"),
    [
        ([], {}, "--local"),
        (["--local", "no/such/folder", "run"], {}, "no/such/folder"),
        (["--local", "configs/experiments/quickstart", "run"], {}, "parser.yaml"),
        (["--local", "SMALL", "run"], {"PARSER": "no/such.ckpt"}, "no/such.ckpt"),
        (["--local", "SMALL", "run"], {"ROUNDS": "3"}, "ROUND_EPOCHS"),
        (["--local", "SMALL", "run"], {"SYSTEMS": "iterative"}, "ROUNDS"),
        (["--local", "SMALL", "run"], {"EPSILON": "three"}, "EPSILON"),
        (["--local", "SMALL", "run"], {"SYSTEMS": "none full"}, "one_stage"),
        (
            ["--local", "SMALL", "run"],
            {"MISSING": "Wether", "TRAIN": "embedded:train?num=50", "TEST": "embedded:test?num=20"},
            "Wether",
        ),
    ],
)
def test_wrong_calls_are_explained(
    arguments: list[str], variables: dict[str, str], message: str, tmp_path: Path
) -> None:
    places = {"SMALL": str(SMALL), "run": str(tmp_path / "run")}
    result = adaptation(*(places.get(argument, argument) for argument in arguments), **variables)
    assert result.returncode == 2
    assert message in result.stderr.splitlines()[-1]


def test_a_run_folder_keeps_its_split(tmp_path: Path) -> None:
    (tmp_path / "adaptation.env").write_text("TRAIN=other\n")
    result = adaptation("--local", str(SMALL), str(tmp_path), SEED="7", DOPPEL_DATA="data")
    assert result.returncode == 2
    assert "< TRAIN=other" in result.stderr and "> SEED=7" in result.stderr


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda path: path.name)
def test_rounds_of_every_experiment_share_one_budget(experiment: Path, tmp_path: Path) -> None:
    """All stages of all rounds, at one σ, compose to at most the target, and not a step more is sold."""
    epochs = [float(number) for number in settings(experiment)["ROUND_EPOCHS"].split()]
    privacy = yaml.safe_load((experiment / "dp_two_stage.yaml").read_text())["trainer"]["callbacks+"]["init_args"]
    accountant: Accountant = "rdp"  # the fastest; the experiments take the tightest
    batch = yaml.safe_load((experiment / "data.yaml").read_text())["data"]["init_args"]["batch_size"]
    num_units = 9_054 if experiment.name.endswith("-small") else 120_226
    target, delta = privacy["target_epsilon"], privacy["delta"]
    spec = plan(num_units, batch, epochs, target, delta=delta, accountant=accountant)
    whole = plan(num_units, batch, sum(epochs), target, delta=delta, accountant=accountant)
    assert spec.noise_multiplier == pytest.approx(whole.noise_multiplier, rel=0.01)
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for number, steps in enumerate(spec.stage_steps):
        stage = ledger.open_mechanism(
            scope="iterative",
            stage=f"iterative_{number // 2 + 1}_{('parse_tree', 'parse2utterance')[number % 2]}",
            spec=spec,
            planned_steps=steps,
            data_fingerprint=f"annotated by round {number // 2}",
        )
        for _ in range(steps):
            ledger.spend(stage)
        assert ledger.epsilon("iterative") <= target
    assert ledger.epsilon("iterative") > 0.95 * target
    with pytest.raises(BudgetExceededError):
        for _ in range(steps):
            ledger.spend(stage)
    assert issubclass(BudgetExceededError, UserError)


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda path: path.name)
def test_epochs_of_stages_are_those_that_the_budget_is_planned_for(experiment: Path) -> None:
    def read(name: str) -> dict:
        return yaml.safe_load((experiment / f"{name}.yaml").read_text())["trainer"]

    planned = {s: read(f"dp_{s}")["callbacks+"]["init_args"]["epochs"] for s in ("one_stage", "two_stage")}
    assert planned["one_stage"] == [read("one_stage")["max_epochs"]]
    assert planned["two_stage"] == [read("parse_tree")["max_epochs"], read("parse2utterance")["max_epochs"]]
    missing = {"weather": "WeatherQueryApi", "event": "EventOnDate*"}
    assert settings(experiment)["MISSING"] == missing[experiment.name.split("-")[1]]
    assert settings(experiment)["PUBLIC_SHARE"] == "0.1"


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory, tiny_model: str) -> Path:
    """The shipped experiment with few turns of the embedded corpus, tiny models and one epoch a stage."""
    folder = tmp_path_factory.mktemp("adaptation") / "tiny"
    shutil.copytree(SMALL, folder)
    for stage in ("one_stage", "parse_tree", "parse2utterance"):
        model = f"model:\n  init_args:\n    base_model: {tiny_model}\n    sampling:\n      max_new_tokens: 8\n"
        (folder / f"{stage}.yaml").write_text(f"trainer:\n  accelerator: cpu\n  max_epochs: 1\n{model}")
    for system, epochs in (("one_stage", "[1]"), ("two_stage", "[1, 1]")):
        text = (folder / f"dp_{system}.yaml").read_text().replace("pld", "rdp").replace("bf16-mixed", "32-true")
        lines = [f"      epochs: {epochs}" if "epochs:" in line else line for line in text.splitlines()]
        (folder / f"dp_{system}.yaml").write_text("\n".join(lines))
    text = (folder / "data.yaml").read_text()
    (folder / "data.yaml").write_text(text.replace("size: 512", "size: 40"))
    (folder / "parser.yaml").write_text(
        "model:\n  init_args:\n    max_actions: 24\n"
        f"    encoder:\n      name: small\n      tokenizer: {tiny_model}\n      num_layers: 1\n"
        "    decoder:\n      num_layers: 2\n      size: 32\n      num_heads: 2\n      feedforward_size: 32\n"
        "trainer:\n  accelerator: cpu\n  max_epochs: 1\n"
    )
    (folder / "parser_low.yaml").unlink()
    (folder / "pipeline.env").write_text(
        "TRAIN=embedded:train?num=200&seed=7&skew=1.5\nTEST=embedded:test?num=60&seed=9&skew=1.5\n"
        "MISSING=FindEvent*\nPUBLIC_SHARE=0.3\nNUM_SAMPLES=20\nSYSTEMS=one_stage two_stage full\n"
        f"FEATURIZER={tiny_model}\nROUND_EPOCHS=1 1 1 1\n"
    )
    return folder


@pytest.mark.slow
def test_the_pipeline_ends_with_parsers_compared_and_every_round_paid_for(experiment: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = adaptation("--local", str(experiment), str(run), ROUNDS="2", SEED="5", SYSTEMS="two_stage")
    assert first.returncode == 0, first.stderr[-3000:]
    report = json.loads((run / "report.json").read_text())
    assert list(report["parser_metrics"]) == ["none", "two_stage", "iterative"]
    assert list(report["round_metrics"]) == ["iterative_1"]
    assert report["missing_function"] == "FindEvent*" and report["seed"] == 5
    for values in report["parser_metrics"].values():
        assert values["num_turns"] == 60
        assert 0 < values["num_turns@FindEvent*"] < 60
    assert report["parser_metrics"]["none"]["exact_match@FindEvent*"] == 0
    assert report["metrics"].keys() == {"two_stage", "iterative"}

    scopes = report["privacy"]["systems"]
    assert scopes.keys() == {"two_stage", "iterative"}
    assert all(2 < scope["epsilon"] <= 3 for scope in scopes.values())
    stages = [m for m in Ledger(run / "ledger.jsonl").summary()["mechanisms"] if m["scope"] == "iterative"]
    assert len(stages) == 4 and len({stage["noise_multiplier"] for stage in stages}) == 1
    assert all(stage["done_steps"] == stage["planned_steps"] for stage in stages)
    assert len({stage["data_fingerprint"] for stage in stages}) == 2  # the second round saw other trees

    private = [json.loads(line) for line in (run / "data" / "private.jsonl").read_text().splitlines()]
    annotated = [json.loads(line) for line in (run / "data" / "private_annotated.jsonl").read_text().splitlines()]
    assert [(p["utterance"], p["unit"]) for p in private] == [(a["utterance"], a["unit"]) for a in annotated]
    assert report["data"]["num_units"] == report["data"]["num_private"] == len(private)
    assert len((run / "annotated_two_stage.jsonl").read_text().splitlines()) == 20

    telling = [line["utterance"].encode() for line in private if len(line["utterance"]) > 30]
    files = [path for path in run.rglob("*") if path.is_file() and run / "data" not in path.parents]
    assert telling and not [path for path in files if any(text in path.read_bytes() for text in telling)]

    ledger = (run / "ledger.jsonl").read_text()
    second = adaptation("--local", str(experiment), str(run), ROUNDS="2", SEED="5", SYSTEMS="two_stage")
    assert second.returncode == 0, second.stderr[-3000:]
    assert "── partition: done already, skipped" in second.stdout
    assert (run / "ledger.jsonl").read_text() == ledger
