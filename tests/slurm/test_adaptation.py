"""The end-to-end adaptation: from annotated turns to parsers that know, or do not know, a function."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commands.run.experiment.experiment import load
from commands.run.steps.recipes import steps_of
from commands.run_folder.manifest_writer import lay_out
from commands.run_folder.steps import Step
from doppel.errors import UserError
from doppel.privacy.ledger import Ledger
from tests.slurm.launches import EXPERIMENTS, launch, write_experiment

SHIPPED = sorted(EXPERIMENTS.glob("adaptation-*.yaml"))
SMALL = "adaptation-weather-small"
EMBEDDED = ("adaptation.train=embedded:train?num=50", "adaptation.test=embedded:test?num=20", "reference=null")


@pytest.mark.parametrize(
    ("experiment", "words", "message"),
    [
        ("quickstart", ["adaptation.by=turn"], "missing"),
        ("quickstart", ["systems=[none]"], "adaptation"),
        (SMALL, ["parser=no/such.ckpt"], "no/such.ckpt"),
        (SMALL, ["epsilon=three"], "epsilon is three"),
        (SMALL, ["systems=[none, full]"], "two_stage"),
        pytest.param(SMALL, ["adaptation.missing=Wether", *EMBEDDED], "Wether", marks=pytest.mark.slow),
    ],
)
def test_wrong_calls_are_explained(
    experiment: str,
    words: list[str],
    message: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("commands.lightning.given_models.find_spec", lambda package: package)  # minilm need not be here
    assert launch(experiment, tmp_path / "run", "--local", "--set", *words) == 2
    assert message in capfd.readouterr().err


def test_a_run_folder_keeps_its_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "experiment.yaml").write_text((EXPERIMENTS / f"{SMALL}.yaml").read_text() + f"name: {SMALL}\n")
    (tmp_path / ".done").mkdir()
    lay_out(tmp_path)
    for name in ("partition", "full-parser"):
        (tmp_path / ".done" / name).touch()  # a run without any finished step may begin anew
    for words, message in (
        (["--seed=7"], "seed=1, now seed=7"),
        (["--set", "adaptation.train=other"], "now adaptation.train=other"),
        (["--set", "adaptation.public_share=0.2"], "now adaptation.public_share=0.2"),
        (["--parser", __file__], "parser=null, now parser="),
    ):
        assert launch(SMALL, tmp_path, "--dry-run", *words) == 2
        assert message in capsys.readouterr().err


def trainings(path: Path, **changes: object) -> dict[str, Step]:
    stages = steps_of(load(path, {name.replace("__", "."): v for name, v in changes.items()}), Path("run"))
    return {stage.name: stage for stage in stages if stage.config and stage.config.get("privacy")}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_epochs_of_stages_are_those_that_the_budget_is_planned_for(path: Path) -> None:
    stages = {name: stage.config for name, stage in trainings(path).items() if stage.config is not None}
    for names in (["one_stage-one_stage"], ["two_stage-parse_tree", "two_stage-parse2utterance"]):
        epochs = [stages[name]["trainer"]["max_epochs"] for name in names]
        assert all(stages[name]["privacy"]["epochs"] == epochs for name in names)
        assert all(stages[name]["data"]["init_args"]["train_path"].startswith("run/data/private") for name in names)
    given = load(path).adaptation
    missing = {"weather": "WeatherQueryApi", "event": "EventOnDate*"}
    assert given is not None and given.missing == missing[path.stem.split("-")[1]]
    assert given.public_share == 0.1


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory, tiny_model: str) -> Path:
    """The shipped experiment with few turns of the embedded corpus, tiny models and one epoch a stage."""
    decoder = {"num_layers": 2, "size": 32, "num_heads": 2, "feedforward_size": 32}
    encoder = {"name": "small", "tokenizer": tiny_model, "num_layers": 1}
    parser = {"model": {"max_actions": 24, "encoder": encoder, "decoder": decoder, "warmup_steps": 1}}
    return write_experiment(
        tmp_path_factory.mktemp("adaptation") / "tiny.yaml",
        base=SMALL,
        adaptation={
            "train": "embedded:train?num=200&seed=7&skew=1.5",
            "test": "embedded:test?num=60&seed=9&skew=1.5",
            "missing": "FindEvent*",
            "public_share": 0.3,
        },
        trainer={"accelerator": "cpu", "precision": "32-true"},
        data={"batch_size": 40},
        model={"base_model": tiny_model},
        privacy={"accountant": "rdp"},
        epochs={"one_stage": 1, "parse_tree": 1, "parse2utterance": 1},
        sampling={"max_new_tokens": 8, "redraws": None},
        stages={
            "parse_tree": {"sampling": {"max_new_tokens": 8}},
            "parser": {**parser, "trainer": {"accelerator": "cpu", "precision": "32-true", "max_epochs": 1}},
            "parser_low": {"trainer": {"max_epochs": 1}},
        },
        num_samples=20,
        featurizer=tiny_model,
    )


@pytest.mark.slow
def test_the_pipeline_ends_with_parsers_compared_and_every_training_paid_for(
    experiment: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    words = ("--local", "--seed=5", "--systems", "two_stage")
    assert launch(experiment, run, *words) == 0, capfd.readouterr().err[-3000:]
    report = json.loads((run / "report.json").read_text())
    assert list(report["parser_metrics"]) == ["none", "two_stage"]
    assert report["missing_function"] == "FindEvent*" and report["seed"] == 5
    for values in report["parser_metrics"].values():
        assert values["num_turns"] == 60
        assert 0 < values["num_turns@FindEvent*"] < 60
    assert report["parser_metrics"]["none"]["exact_match@FindEvent*"] == 0
    assert report["metrics"].keys() == {"two_stage"}

    scopes = report["privacy"]["systems"]
    assert scopes.keys() == {"two_stage"}
    assert all(2 < scope["epsilon"] <= 3 for scope in scopes.values())
    steps = [m for m in Ledger(run / "ledger.jsonl").summary()["mechanisms"] if m["scope"] == "two_stage"]
    assert len(steps) == 2 and len({step["noise_multiplier"] for step in steps}) == 1
    assert all(step["done_steps"] == step["planned_steps"] for step in steps)

    private = [json.loads(line) for line in (run / "data" / "private.jsonl").read_bytes().splitlines()]
    annotated = [json.loads(line) for line in (run / "data" / "private_annotated.jsonl").read_bytes().splitlines()]
    assert [(p["utterance"], p["unit"]) for p in private] == [(a["utterance"], a["unit"]) for a in annotated]
    assert report["data"]["num_units"] == report["data"]["num_private"] == len(private)
    assert len((run / "two_stage/annotated.jsonl").read_bytes().splitlines()) == 20

    telling = [line["utterance"].encode() for line in private if len(line["utterance"]) > 30]
    files = [path for path in run.rglob("*") if path.is_file() and run / "data" not in path.parents]
    assert telling and not [path for path in files if any(text in path.read_bytes() for text in telling)]

    ledger = (run / "ledger.jsonl").read_text()
    capfd.readouterr()
    assert launch(experiment, run, *words) == 0
    assert "── partition (1 of 16): done already, skipped" in capfd.readouterr().out
    assert (run / "ledger.jsonl").read_text() == ledger


def test_those_samples_are_annotated_that_show_most_structures() -> None:
    changes = {"systems": ["one_stage", "two_stage"], "adaptation.num_annotated": 500}
    listed = steps_of(load(EXPERIMENTS / f"{SMALL}.yaml", changes), Path("run"))
    stages = {stage.name: stage for stage in listed}
    chosen = stages["two_stage-diverse"]
    assert chosen.needs == ("two_stage-sample_parse2utterance",)
    assert chosen.command == "choose"
    assert chosen.config.items() >= {"file": "run/two_stage/samples.jsonl", "num": 500, "method": "uat"}.items()
    annotate = stages["two_stage-annotate"]
    assert (annotate.config or {})["data"]["init_args"]["path"] == "run/two_stage/chosen.jsonl"
    assert annotate.needs[0] == "two_stage-diverse"
    assert (stages["one_stage-annotate"].config or {})["data"]["init_args"]["path"] == "run/one_stage/samples.jsonl"
    with pytest.raises(UserError, match="num_annotated is 5000.* 4000"):
        trainings(EXPERIMENTS / f"{SMALL}.yaml", adaptation__num_annotated=5000)
