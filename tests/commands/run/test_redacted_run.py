"""An experiment with `redact`: rows are redacted, the guarantee is that of the training, and the card says so."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml
from finished_run import step_here
from run_folders import work_of

import cli
from commands.privacy.stage_release import read_private
from commands.run import launch
from commands.run.execution.slurm import load_site
from commands.run.experiment.experiment import load, save
from commands.run.preflight.sources import check_files, read_sources
from commands.run.steps.recipes import steps_of
from datamodules.guards.redaction import Redaction
from doppel.errors import UserError
from doppel.privacy.ledger import Ledger
from doppel.redaction.mask import MASK


def write_files(folder: Path) -> None:
    rows = [{"utterance": f"I see the doctor about my knee on day {n}, says Ana", "unit": f"u{n}"} for n in range(60)]
    (folder / "private.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "sensitive.txt").write_text("".join(f"could the doctor look at number {n}\n" for n in range(20)))
    (folder / "safe.txt").write_text("".join(f"could the waiter look at number {n}\n" for n in range(20)))
    (folder / "words.txt").write_text("Ana\n")


def settings(folder: Path, tiny_model: str, **redact: Any) -> dict[str, Any]:
    ranked = {name: str(folder / f"{name}.txt") for name in ("sensitive", "safe", "words")}
    return {
        "systems": ["one_stage"],
        "epsilon": 3.0,
        "num_samples": 6,
        "epochs": {"one_stage": 1},
        "redact": {"level": 0.1, "patterns": ["number"], **ranked, **redact},
        "data": {"train_path": str(folder / "private.jsonl"), "batch_size": 20, "unit": "utterance"},
        "model": {"base_model": tiny_model, "optimizer": {"lr": 0.01}},
        "sampling": {"max_new_tokens": 4, "redraws": None},
        "trainer": {"accelerator": "cpu", "logger": False, "enable_progress_bar": False},
        "privacy": {"delta": 1e-4, "accountant": "rdp"},
    }


def write(folder: Path, given: dict[str, Any]) -> Path:
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(given))
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, tiny_model: str) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("redacted")
    write_files(folder)
    run = folder / "run"
    with mock.patch.dict(os.environ, {"DOPPEL_KEY": str(folder / "site" / "key")}):
        experiment = load(write(folder, settings(folder, tiny_model)))
        work = launch.begin(experiment, run, load_site(None, {}))
        launch.write(work, overwrite=True)
        for step in work.steps[:-1]:
            assert step_here("", run / ".done" / step.name, ["python", "cli.py", *step.words(run)]) == 0, step.name
        yield run


def test_the_run_is_verified_for_the_epsilon_of_its_training(finished: Path, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["verify", str(finished)]) == 0
    card = json.loads((finished / "privacy_card.json").read_text())
    assert card["verified"] and list(card["budgets"]) == ["one_stage"]
    (mechanism,) = Ledger(finished / "ledger.jsonl").summary()["mechanisms"]
    assert mechanism["kind"] == "poisson_subsampled_gaussian" and mechanism["num_units"] == 60
    assert card["budgets"]["one_stage"]["epsilon"] == mechanism["epsilon"] <= 3
    told = capsys.readouterr().out
    assert "what redaction hides (redact): it is no part of the guarantee" in told
    assert "redact" not in (finished / "ledger.jsonl").read_text()


def test_the_list_of_words_is_never_hashed_in_plain(finished: Path) -> None:
    entries = json.loads((finished / "manifest.json").read_text())
    text = json.dumps(entries)
    assert "words.txt" in text and "sensitive.txt" in text
    plain = hashlib.sha256((finished.parent / "words.txt").read_bytes()).hexdigest()
    assert plain not in text


def test_every_step_that_reads_private_rows_redacts_them(tmp_path: Path, tiny_model: str) -> None:
    write_files(tmp_path)
    (tmp_path / "labels.txt").write_text("a\nb\n")
    given = settings(tmp_path, tiny_model) | {
        "systems": ["one_stage", "labels", "topics", "two_stage", "evolution"],
        "labels": str(tmp_path / "labels.txt"),
        "epochs": {"one_stage": 1, "parse_tree": 1, "parse2utterance": 1},
    }
    experiment = load(write(tmp_path, given))
    rule = experiment.redact
    assert rule is not None and rule == Redaction.from_config(given["redact"])
    steps = steps_of(experiment, tmp_path / "run")
    trained = [step for step in steps if step.kind == "fit"]
    assert len(trained) == 5
    for step in trained:
        assert step.config is not None
        assert Redaction.from_config(step.config["data"]["init_args"]["redact"]) == rule
        assert given["redact"]["words"] in step.protected and given["redact"]["safe"] in step.reads
    (evolve,) = (step for step in steps if step.command == "evolve")
    data = evolve.config["data"]
    assert given["redact"]["words"] in evolve.protected
    assert {turn.utterance for turn in read_private(data, needs_label=False)} == {
        f"{MASK} see the {MASK} about my knee on day {MASK} says {MASK}"
    }
    with pytest.raises(UserError, match=r"redact\.safe is .*which is to be public"):
        read_private({**data, "redact": {**data["redact"], "safe": str(tmp_path / "private.jsonl")}}, needs_label=False)
    save(experiment, tmp_path / "experiment.yaml")
    assert load(tmp_path / "experiment.yaml") == experiment


def test_a_run_refuses_a_ranker_of_its_private_rows_before_it_starts(tmp_path: Path, tiny_model: str) -> None:
    write_files(tmp_path)
    experiment = load(write(tmp_path, settings(tmp_path, tiny_model)))
    read_sources(work_of(experiment))
    assert experiment.redact is not None
    private = replace(experiment.redact, sensitive=str(tmp_path / "private.jsonl"))
    with pytest.raises(UserError, match=r"redact\.sensitive is .*which is to be public"):
        read_sources(work_of(replace(experiment, redact=private)))
    with pytest.raises(UserError, match=r"redact\.words is .*none\.txt, which does not exist"):
        check_files(work_of(replace(experiment, redact=replace(experiment.redact, words=str(tmp_path / "none.txt")))))


def test_redaction_without_a_rule_is_refused_in_the_file_that_asks_for_it(tmp_path: Path, tiny_model: str) -> None:
    given = settings(tmp_path, tiny_model) | {"redact": {"level": 0.5}}
    with pytest.raises(UserError, match=r"mine\.yaml: redact\.level is 0\.5"):
        load(write(tmp_path, given))
