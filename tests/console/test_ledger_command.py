"""`ledger`: the same numbers for people and for programs, found from the run folder or a stage folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from commands.run.execution.ledger import ledger as whole_command
from commands.run.execution.slurm import SLURM
from doppel.console.command import call as call_command
from doppel.console.ledger import ledger as command
from doppel.errors import UserError
from doppel.privacy.ledger import Ledger
from doppel.privacy.spec import plan


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    spec = plan(2000, 100, [1, 4], 6.0, delta=1e-5, accountant="rdp")
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for stage, planned, done in (("trees", 20, 20), ("utterances", 80, 7)):
        name = ledger.open(
            scope="two_stage",
            stage=stage,
            spec=spec,
            planned_steps=planned,
            data_fingerprint="0123456789abcdef",
        )
        for _ in range(done):
            ledger.spend(name)
        (tmp_path / stage).mkdir()
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    call_command(command, list(argv), "doppel ledger")
    return capsys.readouterr().out


def test_json_is_the_summary(run_dir, capsys):
    printed = json.loads(run(capsys, str(run_dir), "--json"))
    assert printed == Ledger(run_dir / "ledger.jsonl").summary()
    scope = printed["scopes"]["two_stage"]
    assert (scope["steps_done"], scope["steps_planned"]) == (27, 100)
    assert 0 < scope["epsilon"] < scope["target_epsilon"] == 6.0 and printed["epsilon"] == scope["epsilon"]
    assert max(m["epsilon"] for m in printed["mechanisms"]) < printed["epsilon"]


def test_tables_name_unit_steps_and_the_statement(run_dir, capsys):
    text = run(capsys, str(run_dir))
    for words in ("two_stage/trees", "20/20", "7/80", "27/100", "rdp", "utterance", "removing one utterance"):
        assert words in text


def test_reading_changes_nothing_and_works_from_a_stage_folder(run_dir, capsys):
    before = {p: p.stat().st_mtime_ns for p in run_dir.rglob("*")}
    assert (
        run(capsys, str(run_dir / "trees")) == run(capsys, str(run_dir / "ledger.jsonl")) == run(capsys, str(run_dir))
    )
    assert {p: p.stat().st_mtime_ns for p in run_dir.rglob("*")} == before


def test_no_ledger_and_a_damaged_one_are_one_line(run_dir, tmp_path_factory, capsys):
    with pytest.raises(UserError, match=r"ledger\.jsonl"):
        run(capsys, str(tmp_path_factory.mktemp("empty")))
    with (run_dir / "ledger.jsonl").open("a") as file:
        file.write('{"type": "refund"}\n')
    with pytest.raises(UserError) as error:
        run(capsys, str(run_dir))
    assert error.value.about == f"{run_dir / 'ledger.jsonl'}, line 31"


def test_without_a_folder_it_is_the_ledger_of_the_site(
    run_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Named by the environment, else by slurm/site.yaml, whatever the file is called; else it is said how."""
    monkeypatch.setattr("commands.run.execution.slurm.SLURM", tmp_path / "slurm")
    shutil.copytree(SLURM / "profiles", tmp_path / "slurm" / "profiles")
    monkeypatch.delenv("DOPPEL_LEDGER", raising=False)
    monkeypatch.chdir(tmp_path.parent)
    for of_checkout in (command, whole_command):
        with pytest.raises(UserError, match="DOPPEL_LEDGER"):
            call_command(of_checkout, [], "ledger")
    expected = run(capsys, str(run_dir))
    shared = tmp_path / "customers.jsonl"
    (run_dir / "ledger.jsonl").rename(shared)
    (tmp_path / "slurm" / "site.yaml").write_text(f"environment: {{DOPPEL_LEDGER: {shared}}}")
    call_command(whole_command, [], "cli.py ledger")
    assert capsys.readouterr().out == expected
    monkeypatch.setenv("DOPPEL_LEDGER", str(shared))
    assert run(capsys) == expected
    monkeypatch.setenv("DOPPEL_LEDGER", str(tmp_path / "none.jsonl"))
    with pytest.raises(UserError, match="none.jsonl"):
        call_command(whole_command, [], "cli.py ledger")
