"""`RunFolder`: what run folders hold, and one line where they cannot be read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from run_folders import edit_manifest, evaluate

from commands.quality.run_numbers import values
from commands.run.experiment.experiment import load, save, shipped
from commands.run_folder.run_folder import RunFolder
from commands.run_folder.stage_config import StageConfig
from doppel.errors import UserError


def test_a_new_run_is_read_from_its_experiment(tmp_path: Path) -> None:
    experiment = load(shipped("quickstart"))
    save(
        replace(experiment, seed=4, commit=["abc"], parser="/x/last.ckpt", parser_digest="cafe"),
        tmp_path / "experiment.yaml",
    )
    record = RunFolder(tmp_path)
    assert (record.experiment["name"], record.experiment["seed"]) == ("quickstart", 4)
    assert record.is_private and record.parser == "last.ckpt cafe"  # a report names no folder
    evaluate(tmp_path, "one_stage", {"mauve_own_base": 0.5})
    evaluate(tmp_path, "two_stage", '{"mauve_own_base": ')
    found, problems = values(record, "evaluate")
    assert found == {"one_stage": {"mauve_own_base": 0.5}}
    assert "two_stage/evaluation.json" in problems["two_stage"]
    edit_manifest(tmp_path, "two_stage/evaluation.json")
    assert "half-done" in values(RunFolder(tmp_path), "evaluate")[1]["two_stage"]


def test_settings_of_training_differ_where_the_experiments_do_and_not_by_the_seed(tmp_path: Path) -> None:
    experiment = load(shipped("quickstart"), {"model.optimizer.lr": 0.001})
    changes: dict[str, dict[str, Any]] = {
        "same": {"seed": 9, "commit": ["x"], "systems": ["two_stage"]},
        "elsewhere": {"data": {**experiment.data, "train_path": "/elsewhere"}},  # the fingerprint tells data apart
        "epochs": {"epochs": {**experiment.epochs, "parse_tree": 7.0}},
        "rate": {"model": {**experiment.model, "optimizer": {"lr": 0.5}}},
    }
    texts = {}
    for name, change in {"first": {}, **changes}.items():
        (tmp_path / name).mkdir()
        save(replace(experiment, **change), tmp_path / name / "experiment.yaml")
        texts[name] = RunFolder(tmp_path / name).training_settings("two_stage")
    assert texts["first"] == texts["same"] == texts["elsewhere"]
    assert len(set(texts.values())) == 3
    first, *others = (RunFolder(tmp_path / name) for name in texts)
    assert first.training_settings("two_stage", others).startswith(
        "epochs.parse_tree 1; model.optimizer.lr 0.001; settings "
    )


def test_settings_that_cannot_be_read_are_named_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "experiment.yaml").write_text("SEED=one: [\n")
    with pytest.raises(UserError, match=r"experiment\.yaml") as caught:
        _ = RunFolder(tmp_path).experiment
    assert "\n" not in str(caught.value)


def test_a_snapshot_of_code_is_no_run(tmp_path: Path) -> None:
    for folder in ("run", "run/code/tests", "grid/b"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "experiment.yaml").write_text("name: a\n")
    assert [record.folder for record in RunFolder.find(tmp_path)] == [tmp_path / "grid" / "b", tmp_path / "run"]
    with pytest.raises(UserError, match="nowhere"):
        list(RunFolder.find(tmp_path / "nowhere"))


def test_privacy_of_a_stage_stands_at_the_top(tmp_path: Path) -> None:
    given = {"target_epsilon": 3.0, "scope": "two_stage", "gone_since": 1}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"data": {}, "privacy": given}))
    privacy = StageConfig.read(tmp_path).privacy
    assert privacy is not None
    assert (privacy.target_epsilon, privacy.scope, privacy.delta) == (3.0, "two_stage", None)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"data": {}, "privacy": None, "trainer": {"callbacks": None}}))
    assert StageConfig.read(tmp_path).privacy is None
    with pytest.raises(UserError, match=r"predict\.yaml"):
        StageConfig.read(tmp_path, "predict.yaml")
