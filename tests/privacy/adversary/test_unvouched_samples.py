"""The attacker samples from weights that the run's ledger has not paid for, and has the run reported as private."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from run_folders import edit_manifest, evaluate, make_run, sample

from commands.pipeline.run_record import RunRecord
from commands.privacy.ledger import ledger as ledger_command
from commands.quality.frame import VOID, pool, read_runs
from commands.quality.report import build_report
from commands.quality.report_text import render
from commands.quality.tables import markdown
from doppel.privacy.ledger import Ledger


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished private run of one system, with samples that its ledger covers."""
    folder = tmp_path / "runs" / "run"
    made = make_run(folder, metrics={"two_stage": {}})
    sample(folder, "two_stage")
    evaluate(folder, "two_stage", made["metrics"]["two_stage"])
    return folder


def no_privacy(run: Path) -> None:
    """The overlay of the second stage was forgotten."""
    sample(run, "two_stage", state=None)


def another_scope(run: Path) -> None:
    sample(run, "two_stage", scope="one_stage")


def more_steps(run: Path) -> None:
    sample(run, "two_stage", num_steps=300)


def another_ledger(run: Path) -> None:
    sample(run, "two_stage", ledger={"identity": "0" * 32, "chain": "0" * 64})


def unknown_mechanism(run: Path) -> None:
    sample(run, "two_stage", mechanism_id="two_stage/parse2utterance")


def no_checkpoint(run: Path) -> None:
    (run / "model_two_stage" / "checkpoints" / "last.ckpt").unlink()


def exchanged_weights(run: Path) -> None:
    """Those of another training, under the privacy state of the one that was paid for."""
    path = run / "model_two_stage" / "checkpoints" / "last.ckpt"
    torch.save({**torch.load(path, weights_only=True), "state_dict": {"weight": torch.zeros(2)}}, path)


def unnamed_weights(run: Path) -> None:
    edit_manifest(run, "synthetic.jsonl", inputs={})


def no_record(run: Path) -> None:
    edit_manifest(run, "synthetic.jsonl")


def no_file_of_weights(run: Path) -> None:
    (run / "model_two_stage" / "checkpoints" / "last.ckpt").write_text("weights")


def fixed_seed(run: Path) -> None:
    """An earlier version trained it, whose ledger says nothing of seeds."""
    (run / "model_two_stage" / "config.yaml").write_text("privacy: {seed: 5}\ndata: {init_args: {train_path: x}}\n")


ATTACKS = {
    no_privacy: "trained without privacy",
    another_scope: "whose steps scope 'one_stage' has paid for",
    more_steps: "it has 300 steps, of which .* has 20",
    another_ledger: "paid from another ledger",
    unknown_mechanism: "has 0 for two_stage/parse2utterance",
    exchanged_weights: "its weights are not those that two_stage/fit had after 20 steps",
    no_checkpoint: "which is gone",
    unnamed_weights: "from weights that the manifest does not name",
    no_record: "no step of this run has made samples of two_stage",
    no_file_of_weights: "cannot be read as a checkpoint",
    fixed_seed: "trained with a fixed privacy.seed",
}


def test_samples_that_the_ledger_covers_are_private(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = build_report(RunRecord(run))
    assert 0 < report["privacy"]["systems"]["two_stage"]["epsilon"] <= 3
    ledger_command(run)
    assert "NOT PRIVATE" not in render(report, run / "synthetic.jsonl", []) + capsys.readouterr().out


@pytest.mark.parametrize(("attack", "said"), ATTACKS.items(), ids=[attack.__name__ for attack in ATTACKS])
def test_the_report_does_not_vouch_for_them(run: Path, attack: Callable[[Path], None], said: str) -> None:
    spent = Ledger(run / "ledger.jsonl").epsilon("two_stage")
    attack(run)
    report = build_report(RunRecord(run))
    privacy = report["privacy"]
    assert privacy["epsilon"] is None and privacy["epsilon_if_all_systems_are_released"] is None
    text = render(report, run / "synthetic.jsonl", [])
    assert f"{spent:.4g}" not in text and "not private" in text
    (told,) = (line for line in text.splitlines() if "NOT PRIVATE, two_stage: " in line)
    assert re.search(said, told)


@pytest.mark.parametrize("attack", [attack for attack in ATTACKS if attack is not no_record])
def test_the_ledger_command_does_not_vouch_for_them(
    run: Path, capsys: pytest.CaptureFixture[str], attack: Callable[[Path], None]
) -> None:
    spent = Ledger(run / "ledger.jsonl").epsilon("two_stage")
    attack(run)
    ledger_command(run)
    told = capsys.readouterr().out
    assert "NOT PRIVATE, two_stage: synthetic.jsonl was sampled from" in told and f"{spent:.3f}" not in told


@pytest.mark.parametrize("attack", [attack for attack in ATTACKS if attack not in (no_record, no_checkpoint)])
def test_tables_do_not_vouch_for_them_though_an_earlier_report_did(run: Path, attack: Callable[[Path], None]) -> None:
    spent = Ledger(run / "ledger.jsonl").epsilon("two_stage")
    attack(run)
    frame, _ = read_runs([run])
    assert len(frame) and frame["spent"].isna().all() and frame["caveats"].str.startswith(VOID).all()
    told = markdown(pool(frame))
    assert "3 (void: not private)" in told and f"{spent:.4g}" not in told


def test_a_report_that_never_looked_at_checkpoints_is_not_believed_where_there_are_none(run: Path) -> None:
    no_record(run)
    assert read_runs([run])[0]["spent"].notna().all()
    path = run / "report.json"
    report = json.loads(path.read_text())
    for told in report["privacy"]["systems"].values():
        del told["voids"]
    path.write_text(json.dumps(report))
    frame, _ = read_runs([run])
    assert len(frame) and frame["spent"].isna().all() and frame["caveats"].str.startswith(VOID).all()


def test_a_system_that_no_ledger_names_is_not_left_out_of_what_all_spend(run: Path) -> None:
    sample(run, "one_stage", state=None)
    evaluate(run, "one_stage", {"mauve_own_base": 0.5})
    report = build_report(RunRecord(run))
    assert report["privacy"]["epsilon_if_all_systems_are_released"] is None
    assert "but one_stage, which is NOT PRIVATE, released together" in report["privacy"]["statement"]


def test_a_private_checkpoint_of_the_same_name_does_not_stand_in_for_the_one_that_was_sampled(
    run: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere" / "model_two_stage" / "checkpoints" / "last.ckpt"
    elsewhere.parent.mkdir(parents=True)
    torch.save({"state_dict": {}, "callbacks": {}}, elsewhere)
    edit_manifest(run, "synthetic.jsonl", inputs={str(elsewhere): "0" * 64})
    assert build_report(RunRecord(run))["privacy"]["epsilon"] is None
