"""An experiment from data to report, on a tiny model; a grid; what a run folder refuses."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from commands.run.closing import tell_result
from commands.run.execution.slurm import load_site
from commands.run.experiment.experiment import load
from commands.run.launch import begin
from commands.run.steps.recipes import steps_of
from commands.run_folder.manifest_writer import lay_out
from doppel.errors import UserError
from doppel.privacy.ledger import Ledger
from tests.run_folders import spec
from tests.slurm.launches import EXPERIMENTS, ROOT, launch, write_experiment

EMBEDDED = "embedded:test?num=120&seed=9"


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory, tiny_model: str) -> Path:
    """The quickstart with a tiny model, few turns and one epoch a stage."""
    return write_experiment(
        tmp_path_factory.mktemp("experiment") / "tiny.yaml",
        base="quickstart",
        data={"train_path": "embedded:train?num=120&seed=7&skew=1.5", "batch_size": 30},
        reference=EMBEDDED,
        compare_with_private=False,
        num_samples=30,
        epochs={"one_stage": 1, "parse_tree": 1, "parse2utterance": 1},
        at_epsilon={"inf": {"epochs": {"one_stage": 2}}},
        model={"base_model": tiny_model},
        sampling={"max_new_tokens": 8, "redraws": None},
        stages={"parse_tree": {"sampling": {"max_new_tokens": 8}}},
        trainer={"accelerator": "cpu"},
        privacy={"accountant": "rdp"},
        featurizer=tiny_model,
    )


@pytest.mark.slow
def test_a_run_writes_samples_ledger_and_report_and_is_not_run_twice(
    experiment: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert launch(experiment, run, "--local") == 0
    told = capfd.readouterr().out
    assert "── two_stage-parse_tree (6 of 12): training" in told and "── tiny finished in " in told
    assert f"{run}/two_stage/samples.jsonl (two_stage, ε " in told
    ending = told[told.index("── tiny finished in ") :].splitlines()
    assert len([line for line in ending if not line.startswith("   warning ")]) <= 10
    report = json.loads((run / "report.json").read_text())
    privacy = report["privacy"]
    assert {"epsilon", "delta", "unit", "accountant", "noise_multiplier"} <= privacy.keys()
    assert 7 < privacy["epsilon"] <= 8
    assert privacy["epsilon_if_all_systems_are_released"] > privacy["epsilon"]
    assert report["card"]["verified"], report["card"]["reasons"]
    assert report["metrics"]["one_stage"]["function_overlap"] is None
    assert report["metrics"]["two_stage"]["num_trees"] == 30
    assert not [name for system in report["metrics"].values() for name in system if name.startswith("private/")]
    assert {"timings", "versions"} <= report.keys()
    assert (report["experiment"], report["seed"], report["epsilon"]) == ("tiny", 1, 8.0)
    assert report["data"]["num_units"] == 120
    assert report["base_model"] and report["commit"] and report["num_samples"] == 30
    samples = [json.loads(line) for line in (run / "two_stage/samples.jsonl").read_bytes().splitlines()]
    trees = [json.loads(line)["parse"] for line in (run / "two_stage/trees.jsonl").read_bytes().splitlines()]
    assert [sample["parse"] for sample in samples] == trees
    assert len((run / "one_stage/samples.jsonl").read_bytes().splitlines()) == 30
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 for path in run.rglob("*") if not path.is_symlink())
    ledger = (run / "ledger.jsonl").read_text()

    assert launch(experiment, run, "--local") == 0
    assert capfd.readouterr().out.count("done already, skipped") == 11
    assert (run / "ledger.jsonl").read_text() == ledger

    for words, message in (
        (["--epsilon=3"], "epsilon=8, now epsilon=3"),
        (["--seed=2"], "seed=null, now seed=2"),
        (["--set", "trainer.max_steps=1"], "trainer.max_steps=(not set), now trainer.max_steps=1"),
    ):
        assert launch(experiment, run, "--local", *words) == 2
        assert f"was started with {message} is asked" in capfd.readouterr().err
    (run / "experiment.yaml").unlink()
    assert launch(experiment, run, "--local") == 2
    assert "experiment.yaml" in capfd.readouterr().err


@pytest.mark.slow
def test_a_grid_takes_epsilons_and_seeds_and_goes_on_after_a_failed_run(
    experiment: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    (runs / "epsilon=0.5,seed=4").mkdir(parents=True)
    begun = {**yaml.safe_load(experiment.read_text()), "name": "tiny", "epsilon": 7, "systems": ["one_stage"]}
    write_experiment(runs / "epsilon=0.5,seed=4" / "experiment.yaml", **begun)  # fails at once
    (runs / "epsilon=0.5,seed=4" / ".done").mkdir()
    (runs / "epsilon=0.5,seed=4" / ".done" / "one_stage-one_stage").write_text("1\n")
    lay_out(runs / "epsilon=0.5,seed=4")
    words = ("--systems", "one_stage", "--grid", "epsilon=0.5,inf", "seed=4", "--set", "num_samples=8")
    assert launch(experiment, runs, "--local", *words) == 1
    failed, finished = capfd.readouterr().out.strip().splitlines()[-2:]
    assert failed.startswith("epsilon=0.5,seed=4: FAILED with status 2: error:") and "now epsilon=0.5" in failed
    assert finished == "epsilon=inf,seed=4: finished"
    report = json.loads((runs / "epsilon=inf,seed=4" / "report.json").read_text())
    assert report["privacy"] is None and report["epsilon"] is None
    assert (report["seed"], list(report["metrics"])) == (4, ["one_stage"])
    assert len(report["data"]["fingerprint"]) == 32
    assert not (runs / "epsilon=inf,seed=4" / "ledger.jsonl").exists()
    config = yaml.safe_load((runs / "epsilon=inf,seed=4" / "one_stage" / "one_stage" / "config.yaml").read_text())
    assert (config["seed_everything"], config["privacy"], config["trainer"]["max_epochs"]) == (4, None, 2)
    assert config["data"]["init_args"]["sampling"] == "shuffle"


def test_metrics_through_another_parser_are_computed_anew(
    experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, parser = tmp_path / "run", tmp_path / "parser.ckpt"
    (run / ".done").mkdir(parents=True)
    lay_out(run)
    for name in ("one_stage-one_stage", "one_stage-sample_one_stage", "one_stage-evaluate"):
        (run / ".done" / name).write_text("1\n")
    parser.write_text("one parser")
    saved = yaml.safe_load(experiment.read_text())
    file = write_experiment(run / "experiment.yaml", **{**saved, "name": "tiny", "systems": ["one_stage"]})
    for given, is_repeated in (([], False), ([f"--parser={parser}"], True)):
        assert launch(file, run, "--dry-run", *given) == 0
        assert ("JOB_one_stage_evaluate" in capsys.readouterr().out) == is_repeated
    assert (run / ".done" / "one_stage-evaluate").exists(), "a dry run leaves the marks"


def test_only_a_system_that_was_not_begun_may_be_described_later(
    experiment: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    (run / ".done").mkdir(parents=True)
    (run / ".done" / "two_stage-parse_tree").write_text("1\n")
    lay_out(run)
    write_experiment(run / "experiment.yaml", **{**yaml.safe_load(experiment.read_text()), "name": "tiny"})
    for field in ("stages.parse_tree.data.batch_size", "variants.two_stage.data.batch_size"):
        assert launch(experiment, run, "--dry-run", "--set", f"{field}=3") == 2
        assert f"was started with {field}=(not set), now {field}=3 is asked" in capfd.readouterr().err
    for field in ("variants.mine.data.batch_size", "stages.one_stage.data.batch_size"):
        assert launch(experiment, run, "--dry-run", "--set", f"{field}=3") == 0


@pytest.mark.parametrize("left", ["nothing", "a step", "a checkpoint", "a mark"])
def test_a_failed_start_binds_nobody_and_one_step_does(
    experiment: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], left: str
) -> None:
    run = tmp_path / "run"
    (run / "configs").mkdir(parents=True)
    lay_out(run)
    write_experiment(run / "experiment.yaml", **{**yaml.safe_load(experiment.read_text()), "name": "tiny"})
    ledger, terms = Ledger(run / "ledger.jsonl"), spec(8.0)
    mechanism = ledger.open(scope="one_stage", stage="one_stage", spec=terms, planned_steps=20, data_fingerprint="f00d")
    if left == "a step":
        ledger.spend(mechanism)
    elif left != "nothing":
        file = run / (
            "one_stage/one_stage/checkpoints/last.ckpt" if left == "a checkpoint" else ".done/one_stage-one_stage"
        )
        file.parent.mkdir(parents=True)
        file.write_text("")
    status = launch(experiment, run, "--dry-run", "--set", "data.batch_size=3")
    assert status == (0 if left == "nothing" else 2)
    assert ("spends on top" in capfd.readouterr().err) == (left != "nothing")


def test_an_overlay_that_experiment_and_site_both_name_counts_once(experiment: Path, tmp_path: Path) -> None:
    overlay = tmp_path / "timer.yaml"
    overlay.write_text("trainer: {callbacks+: [{class_path: lightning.pytorch.callbacks.Timer}]}\n")
    given = load(experiment, {"overlays": [str(overlay)]})
    stages = steps_of(given, tmp_path, given.overlays)
    configs = {stage.name: stage.config for stage in stages if stage.kind == "fit"}
    assert configs == {s.name: s.config for s in steps_of(given, tmp_path) if s.kind == "fit"}


def test_a_run_ends_with_what_paid_for_each_system_and_says_what_nothing_paid_for(
    experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spent = {"one_stage": 7.9, "two_stage": 7.8, "labels": None}
    systems = {name: {"epsilon": value, "target_epsilon": 8} for name, value in spent.items()}
    others = {"num_runs": 2, "statement": "With 1 other run on these data: 12.1."}
    privacy = {"systems": systems, "epsilon_if_all_systems_are_released": 10.62, "everything": others}
    (tmp_path / "report.json").write_text(json.dumps({"privacy": privacy}))
    (tmp_path / "labels.txt").write_text("yes\nno\n")
    names = ["one_stage", "two_stage", "unconstrained", "labels"]
    given = replace(load(experiment), systems=names, labels=str(tmp_path / "labels.txt"))
    tell_result(begin(given, tmp_path, load_site(None, {})), 1.0)
    told = capsys.readouterr().out
    assert "(one_stage, ε 8, spent so far 7.9)\n" in told and "(labels, NOT PRIVATE)\n" in told
    assert "(unconstrained, ε 8, spent so far 7.8)\n" in told, "it samples from the models of two_stage"
    assert "together ε 10.62, which holds for all" in told and "With 1 other run on these data: 12.1." in told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["quickstart.yaml"], "run_dir"),
        (["no/such/file.yaml", "RUN", "--local"], "no/such/file"),
        (["quickstart.yaml", "RUN", "--sumbit"], "did you mean 'submit'"),
        (["quickstart.yaml", "RUN", "--local", "--submit", "--check"], "--local"),
        (["quickstart.yaml", "RUN", "--dry-run", "--profile=dgx3"], "dgx2-v100"),
        (["quickstart.yaml", "RUN", "--local", "--epsilon=three"], "epsilon is three"),
        (["quickstart.yaml", "RUN", "--local", "--set", "epochs.parse_tree=two"], "epochs.parse_tree is 'two'"),
        (["quickstart.yaml", "RUN", "--check", "--grid", "epsilon"], "NAME=VALUE"),
        (["quickstart.yaml", "RUN", "--check", "--grid", "epsilon=[3"], "YAML"),
        (["quickstart.yaml", "/dev/null/run", "--local", "--systems", "one_stage"], "/dev/null/run"),
        (["quickstart.yaml", "RUN", "--local", "--systems", "labels"], "labels"),
        (["quickstart.yaml", "RUN", "--local", "--systems", "unconstrained", "two_stage"], "two_stage"),
        (["quickstart.yaml", "RUN", "--local", "--set", "data.batchsize"], "NAME=VALUE"),
        (["quickstart.yaml", "RUN", "--local", "--set", "num_sample=3"], "did you mean 'num_samples'"),
        (["quickstart.yaml", "RUN", "--local", "--set", "epochs.parse_treee=2"], "did you mean 'parse_tree'"),
        (["quickstart.yaml", "RUN", "--local", "--set", "stages.parsetree.data.batch_size=2"], "no stage 'parsetree'"),
        (["quickstart.yaml", "RUN", "--local", "--set", "privacy.scope=x"], "systems"),
        (["quickstart.yaml", "RUN", "--local", "--parser=no/such.ckpt"], "no/such.ckpt"),
        (["own-data-small.yaml", "RUN", "--local"], "data.train_path"),
        (["quickstart.yaml", "RUN", "--local", "--set", "data.train_path=a.jsonl"], "reference"),
        (
            ["own-data-small.yaml", "RUN", "--local", "--set", "data.train_path=a.jsonl", "reference=./a.jsonl"],
            "a.jsonl",
        ),
        (
            ["own-data-small.yaml", "RUN", "--local", "--set", "data.train_path=BAD", f"reference={ROOT}/README.md"],
            "bad.jsonl:2",
        ),
    ],
)
def test_wrong_calls_are_one_line_errors_before_anything_starts(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import cli

    (tmp_path / "bad.jsonl").write_text('{"utterance": "hello", "parse": "(Yield (Today))"}\n{"utterance": \n')
    places = {"RUN": str(tmp_path / "run"), "data.train_path=BAD": f"data.train_path={tmp_path}/bad.jsonl"}
    given = [places.get(word, str(EXPERIMENTS / word) if word.endswith(".yaml") else word) for word in words]
    assert cli.main(["run", *given]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("epsilon", [3.0, float("inf")])
def test_resampled_trees_are_drawn_between_the_two_passes(tmp_path: Path, epsilon: float) -> None:
    systems = ["one_stage", "two_stage", "unconstrained"]
    changes = {"systems": systems, "resampling.noise_multiplier": 7.0, "num_samples": 100, "epsilon": epsilon}
    listed = steps_of(load(EXPERIMENTS / "smcalflow-best-small.yaml", changes), tmp_path)
    stages = {stage.name: stage for stage in listed}
    pool, drawn = stages["two_stage-sample_parse_tree"].config, stages["two_stage-resample"]
    assert pool is not None and pool["data"]["init_args"]["num_samples"] == 2000
    assert "two_stage/pool.jsonl" in str(pool["trainer"]["callbacks"])
    assert drawn.needs == ("two_stage-sample_parse_tree",)
    assert (drawn.command, drawn.config["stage_dir"]) == ("resample", str(tmp_path / "two_stage/parse_tree"))
    assert ("exact" in drawn.config) == (epsilon == float("inf"))
    assert "two_stage-resample" in stages["two_stage-sample_parse2utterance"].needs
    assert stages["unconstrained-resample"].needs == ("unconstrained-sample_parse_tree", "two_stage-resample")
    assert "unconstrained-resample" in stages["unconstrained-sample_parse2utterance"].needs
    trainings = {"two_stage-parse_tree": 7.0, "two_stage-parse2utterance": 7.0, "one_stage-one_stage": None}
    for name, expected in trainings.items():
        privacy = (stages[name].config or {}).get("privacy")
        assert privacy is None if epsilon == float("inf") else privacy.get("histogram_noise_multiplier") == expected
    assert not any(
        "pool" in str(stage.config)
        for stage in listed
        if "parse_tree" not in stage.name and stage.command != "resample"
    )


def test_resampled_utterances_are_drawn_after_all_passes(tmp_path: Path) -> None:
    changes = {"systems": ["one_stage", "two_stage", "unconstrained"], "num_samples": 100, "public_parser": "P"}
    changes |= {"resampling.oversample": 5, "resampling.of": "utterances"}
    listed = steps_of(load(EXPERIMENTS / "smcalflow-best-small.yaml", changes), tmp_path)
    stages = {stage.name: stage for stage in listed}
    files = {"one_stage-sample_one_stage": "one_stage/pool", "two_stage-sample_parse_tree": "two_stage/trees"}
    for name, file in {**files, "two_stage-sample_parse2utterance": "two_stage/pool"}.items():
        config = stages[name].config
        assert config is not None and config["data"]["init_args"]["num_samples"] == 500
        assert str(tmp_path / f"{file}.jsonl") in str(config["trainer"]["callbacks"])
    one, two = stages["one_stage-resample"], stages["two_stage-resample"]
    assert one.config["stage_dir"] == str(tmp_path / "one_stage/one_stage") and one.needs == (
        "one_stage-sample_one_stage",
    )
    assert two.config["stage_dir"] == str(tmp_path / "two_stage/parse2utterance") and two.config["parser"] == "P"
    assert stages["unconstrained-resample"].needs[-1] == "two_stage-resample"
    assert stages["one_stage-evaluate"].needs == ("one_stage-resample",)
    assert stages["two_stage-evaluate"].needs == ("two_stage-resample",)
    for name in ("one_stage-one_stage", "two_stage-parse_tree", "two_stage-parse2utterance"):
        assert (stages[name].config or {})["privacy"]["histogram_noise_multiplier"] == 10.0


def test_topics_are_one_training_whose_over_sample_is_drawn(tmp_path: Path) -> None:
    changes = {"systems": ["topics"], "data.train_path": "private.jsonl", "reference": "public.jsonl"}
    changes |= {"num_samples": 100, "topics.num_topics": 7}
    stages = {s.name: s for s in steps_of(load(EXPERIMENTS / "own-data-small.yaml", changes), tmp_path)}
    assert list(stages) == [
        "topics-one_stage",
        "topics-sample_one_stage",
        "topics-resample",
        "topics-words",
        "topics-evaluate",
        "report",
    ]
    training, sampling = (stages[name].config or {} for name in ("topics-one_stage", "topics-sample_one_stage"))
    privacy = training["privacy"]
    assert (privacy["epochs"], privacy["scope"], privacy["histogram_noise_multiplier"]) == ([12], "topics", 10.0)
    assert sampling["data"]["init_args"]["num_samples"] == 500
    assert str(tmp_path / "topics/pool.jsonl") in str(sampling["trainer"]["callbacks"])
    drawn = stages["topics-resample"].config
    assert (drawn["stage_dir"], drawn["num_topics"]) == (str(tmp_path / "topics/one_stage"), 7)
    assert drawn["texts"] == "public.jsonl", "the reference"
    for without in ({"topics.texts": "samples"}, {"reference": None}):
        others = {s.name: s for s in steps_of(load(EXPERIMENTS / "own-data-small.yaml", changes | without), tmp_path)}
        assert "texts" not in others["topics-resample"].config
    assert drawn["out"] == str(tmp_path / "topics/samples.jsonl")
    assert stages["topics-evaluate"].needs == ("topics-resample",)


def test_a_public_parser_writes_the_trees_of_private_utterances_one_by_one(tmp_path: Path) -> None:
    """A tree must be a function of its own utterance: rows that are parsed together round each other's numbers."""
    changes = {"write_parses": True, "public_parser": "P", "data.train_path": "mine.csv", "reference": "public.txt"}
    changes |= {"data.columns": {"text": "review", "unit": "who"}, "data.unit": "user", "compare_with_private": True}
    stages = {s.name: s for s in steps_of(load(EXPERIMENTS / "own-data-small.yaml", changes), tmp_path)}
    annotate = stages["annotate_private"].config or {}
    assert (annotate["ckpt_path"], annotate["model"]["init_args"]["max_rows"]) == ("P", 1)
    told = {"path": "mine.csv", "unit": "user", "columns": {"text": "review", "unit": "who"}}
    assert told.items() <= annotate["data"]["init_args"].items()
    annotated = str(tmp_path / "data" / "private_annotated.jsonl")
    for name in ("one_stage-one_stage", "two_stage-parse_tree", "two_stage-parse2utterance"):
        assert "annotate_private" in stages[name].needs
        data = (stages[name].config or {})["data"]["init_args"]
        assert (data["train_path"], data["unit"], data.get("columns")) == (annotated, "user", None)
    assert stages["two_stage-evaluate"].config["private"] == annotated


@pytest.mark.parametrize(
    "changes", [{"variants.mine.data.train_path": "other.jsonl"}, {"adaptation": {"train": "a", "missing": "B"}}]
)
def test_parses_are_written_for_one_file(changes: dict[str, object]) -> None:
    with pytest.raises(UserError, match="write_parses"):
        load(EXPERIMENTS / "own-data-small.yaml", {"write_parses": True, "public_parser": "P", **changes})


def test_without_a_reference_there_is_a_report_and_nothing_is_compared(tmp_path: Path) -> None:
    changes = {"systems": ["one_stage", "labels"], "data.train_path": "mine.csv", "labels": "labels.txt"}
    stages = steps_of(load(EXPERIMENTS / "own-data-small.yaml", changes), tmp_path)
    assert not any(stage.command == "evaluate" for stage in stages)
    assert (stages[-1].command, stages[-1].config) == ("report", {"runs": [str(tmp_path)]})
    assert stages[-1].needs == ("one_stage-sample_one_stage", "labels-choose")


def test_a_resampling_that_makes_no_sense_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ("resampling.noise_multiplier", "resampling.oversample", "topics.num_topics"):
        assert launch("quickstart", tmp_path, "--dry-run", "--set", f"{wrong}=0") == 2
        assert f"{wrong} is 0" in capsys.readouterr().err
    assert launch("quickstart", tmp_path, "--dry-run", "--set", "resampling.of=utterances") == 2
    assert "public_parser" in capsys.readouterr().err
    words = ["resampling.of=utterances", "candidates=2"]
    assert launch("quickstart", tmp_path, "--dry-run", "--set", *words) == 2
    assert "candidates" in capsys.readouterr().err
