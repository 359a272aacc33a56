"""Sections of an experiment: what ``--set`` gives wins, in old runs too."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from commands.run.experiment.experiment import load, save
from commands.run_folder.ownership import has_begun
from commands.run_folder.private_files import of_runs
from commands.run_folder.run_folder import RunFolder
from doppel.settings.yaml_files import dump

OWN = {
    "base": "own-data-small",
    "data": {"train_path": "/a.csv", "batch_size": 8},
    "stages": {
        "one_stage": {"data": {"batch_size": 4, "truncate": True}, "trainer": {"callbacks+": [1]}},
        "parser": {"trainer": {"max_epochs": 3}, "data": {"batch_size": 2}},
    },
    "variants": {"wide": {"data": {"batch_size": 16}, "model": {"max_length": 64}}},
}


def test_what_set_gives_wins_over_stages_and_variants_but_for_parsers(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(dump(OWN))
    given = load(tmp_path / "own.yaml", {"data.batch_size": 32, "trainer.callbacks+": [2], "privacy.delta": None})
    assert given.data["batch_size"] == 32 and given.privacy["delta"] is None
    assert given.stages["one_stage"] == {"data": {"truncate": True}, "trainer": {"callbacks+": [1]}}
    assert given.stages["parser"] == OWN["stages"]["parser"]
    assert given.of("wide").data["batch_size"] == 32 and given.of("wide").model["max_length"] == 64
    assert load(tmp_path / "own.yaml").of("wide").data["batch_size"] == 16
    save(given, tmp_path / "saved.yaml")
    assert load(tmp_path / "saved.yaml").as_dict() == given.as_dict()


def test_a_run_that_kept_overrides_says_what_it_was_started_with(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(dump(OWN))
    new = load(tmp_path / "own.yaml", {"data.train_path": "/b.csv", "data.batch_size": 32})
    old = load(tmp_path / "own.yaml").as_dict() | {"overrides": {"data": {"train_path": "/b.csv", "batch_size": 32}}}
    (tmp_path / "experiment.yaml").write_text(yaml.safe_dump(old))
    assert load(tmp_path / "experiment.yaml").as_dict() == new.as_dict()
    assert RunFolder(tmp_path).experiment["data"] == new.data
    assert {path for path, _ in of_runs(tmp_path)} == {"/b.csv"}


def test_a_folder_that_goes_while_files_of_trainings_are_looked_for_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another step's temporary one does."""
    (tmp_path / "system" / "one").mkdir(parents=True)
    (tmp_path / "system" / "one" / "config.yaml").write_text(dump({"data": {"init_args": {"train_path": "/c.csv"}}}))
    (tmp_path / "system" / "one" / "checkpoints").mkdir()
    (tmp_path / "system" / "one" / "checkpoints" / "last.ckpt").touch()
    scandir = os.scandir

    def scan(path: Any = ".") -> Any:
        if not isinstance(path, int) and os.fspath(path).endswith("system"):
            raise FileNotFoundError(path)
        return scandir(path)

    assert {path for path, _ in of_runs(tmp_path)} == {"/c.csv"} and has_begun(tmp_path)
    monkeypatch.setattr(os, "scandir", scan)
    assert of_runs(tmp_path) == [] and not has_begun(tmp_path)
