"""`RunRecord`: what new and older run folders hold, and one line where they cannot be read."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from commands.pipeline.experiment import load, save, shipped
from commands.pipeline.run_record import RunRecord, StageConfig
from doppel.errors import UserError


def test_an_older_run_is_read_from_its_settings(tmp_path: Path) -> None:
    lines = ["EXPERIMENT=smcalflow-small", "EPSILON=inf", "SEED=3", "NUM_SAMPLES=1711", "EPOCHS=", "FIT_ARGS=--a b"]
    lines += ["REFERENCE=valid.zip", "PARSER=/x/last.ckpt cafe", "COMMIT=abc", "COMMIT=def"]
    (tmp_path / "settings.env").write_text("\n".join(lines) + "\n")
    record = RunRecord(tmp_path)
    experiment = record.experiment
    assert (experiment["name"], experiment["table"], experiment["seed"]) == ("smcalflow-small", "main", 3)
    assert (experiment["epsilon"], experiment["num_samples"], experiment["commit"]) == (math.inf, 1711, ["abc", "def"])
    assert not record.is_private and record.parser == "/x/last.ckpt cafe"
    assert record.training_settings("two_stage") == "FIT_ARGS --a b"


def test_a_run_older_than_its_settings_was_private_and_says_nothing(tmp_path: Path) -> None:
    (tmp_path / ".done").mkdir()
    (record,) = RunRecord.find(tmp_path)
    assert record.is_private and record.experiment.get("name") is None and record.parser is None


def test_a_new_run_is_read_from_its_experiment(tmp_path: Path) -> None:
    experiment = load(shipped("quickstart"))
    save(
        replace(experiment, seed=4, commit=["abc"], parser="/x/last.ckpt", parser_digest="cafe"),
        tmp_path / "experiment.yaml",
    )
    record = RunRecord(tmp_path)
    assert (record.experiment["name"], record.experiment["seed"]) == ("quickstart", 4)
    assert record.is_private and record.parser == "/x/last.ckpt cafe"
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "evaluation" / "one_stage.json").write_text('{"mauve": 0.5}')
    (tmp_path / "evaluation" / "two_stage.json").write_text('{"mauve": ')
    values, problems = record.values("evaluation")
    assert values == {"one_stage": {"mauve": 0.5}}
    assert "two_stage.json is no JSON" in problems["two_stage"]
    (tmp_path / "evaluation" / "two_stage.json").unlink()
    assert "half-done" in record.values("evaluation")[1]["two_stage"]


def test_settings_of_training_differ_where_the_experiments_do_and_not_by_the_seed(tmp_path: Path) -> None:
    experiment = load(shipped("quickstart"))
    changes: dict[str, dict[str, Any]] = {
        "same": {"seed": 9, "commit": ["x"], "systems": ["two_stage"]},
        "elsewhere": {"data": {**experiment.data, "train_path": "/elsewhere"}},  # the fingerprint tells data apart
        "epochs": {"epochs": {**experiment.epochs, "parse_tree": 7.0}},
        "rate": {"overrides": {"model": {"optimizer": {"lr": 0.5}}}},
    }
    texts = {}
    for name, change in {"first": {}, **changes}.items():
        (tmp_path / name).mkdir()
        save(replace(experiment, **change), tmp_path / name / "experiment.yaml")
        texts[name] = RunRecord(tmp_path / name).training_settings("two_stage")
    assert texts["first"] == texts["same"] == texts["elsewhere"]
    assert len(set(texts.values())) == 3


@pytest.mark.parametrize("name", ["experiment.yaml", "settings.env"])
def test_settings_that_cannot_be_read_are_named_in_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("SEED=one: [\n")
    with pytest.raises(UserError, match=name) as caught:
        _ = RunRecord(tmp_path).experiment
    assert "\n" not in str(caught.value)


def test_a_snapshot_of_code_is_no_run(tmp_path: Path) -> None:
    for folder in ("run", "run/code/tests", "grid/b"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "experiment.yaml").write_text("name: a\n")
    assert [record.folder for record in RunRecord.find(tmp_path)] == [tmp_path / "grid" / "b", tmp_path / "run"]
    with pytest.raises(UserError, match="is no folder"):
        list(RunRecord.find(tmp_path / "nowhere"))


def test_privacy_of_a_stage_stands_at_the_top_or_in_the_callback_of_older_files(tmp_path: Path) -> None:
    given = {"target_epsilon": 3.0, "scope": "two_stage", "gone_since": 1}
    callback = {"class_path": "callbacks.differential_privacy.DifferentialPrivacy", "init_args": given}
    for content in ({"privacy": given}, {"trainer": {"callbacks": [{"class_path": "Progress"}, callback]}}):
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(content))
        privacy = StageConfig.read(tmp_path).privacy
        assert privacy is not None
        assert (privacy.target_epsilon, privacy.scope, privacy.delta) == (3.0, "two_stage", None)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"privacy": None, "trainer": {"callbacks": None}}))
    assert StageConfig.read(tmp_path).privacy is None
    with pytest.raises(UserError, match=r"predict\.yaml"):
        StageConfig.read(tmp_path, "predict.yaml")
