"""The attacker spends on the same people in one run folder after the other, so that each tells of its own ε alone."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from known_plans import known_plan

import cli
from commands.privacy.coverage import covered_summary
from commands.run_folder.run_folder import RunFolder
from doppel.console.ledger import find, tables
from doppel.files import sha256_of
from doppel.privacy.accounting import Mechanism, compute_epsilon
from doppel.privacy.ledger import BudgetExceededError, Ledger, LedgerError, join, leave

SPEC = known_plan("one epoch")
ROOT = Path(__file__).parents[3]


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    return tmp_path / "site" / "people.jsonl"


def train(run: Path, steps: int = 20, scope: str = "two_stage") -> Ledger:
    """What a training does to the ledger of its run folder."""
    ledger = Ledger(run / "ledger.jsonl")
    name = ledger.open(scope=scope, stage="fit", spec=SPEC, planned_steps=20, data_fingerprint="f00d")
    for _ in range(steps):
        ledger.spend(name)
    return ledger


def epsilon(steps: int) -> float:
    return compute_epsilon([Mechanism(SPEC.sample_rate, SPEC.noise_multiplier, steps)], SPEC.budget.delta, "rdp")


def test_runs_of_one_ledger_keep_their_scopes_apart_and_add_up(tmp_path: Path, shared: Path) -> None:
    runs = [tmp_path / place / "mine" for place in ("a", "b", "c")]  # three folders of one name
    for run in runs:
        join(run / "ledger.jsonl", shared)
        ledger = train(run)
    summary = ledger.summary()
    assert list(summary["scopes"]) == ["two_stage"] and summary["epsilon"] == epsilon(20) <= 6
    assert summary["everything"]["epsilon"] == ledger.epsilon() == epsilon(60) > 6
    assert summary["everything"]["num_runs"] == 3
    assert [line for line in shared.parent.iterdir() if line.suffix == ".jsonl"] == [shared]


def test_a_folder_of_runs_tells_what_all_of_them_spend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("seed=1", "seed=2"):
        train(tmp_path / "grid" / name)
    assert cli.main(["ledger", str(tmp_path / "grid")]) == 0
    told = capsys.readouterr().out
    mechanism = Mechanism(SPEC.sample_rate, SPEC.noise_multiplier, 40)
    assert f"on the same people: epsilon = {compute_epsilon([mechanism], SPEC.budget.delta):.4g}" in told
    assert "seed=1" in told and "seed=2" in told


def test_scopes_may_have_any_name_and_stay_those_of_one_run(tmp_path: Path) -> None:
    for scope in ("team/a", "team2/a", "a"):
        ledger = train(tmp_path / "run", scope=scope)
    assert ledger.summary()["everything"]["num_runs"] == 1


def test_the_ledger_tells_what_holds_for_a_release_for_a_run_and_for_everything(tmp_path: Path, shared: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for run in (first, second):
        join(run / "ledger.jsonl", shared)
        train(run)
    train(second, scope="one_stage")
    told = tables(Ledger(find(second)).summary())
    for number, digits in ((epsilon(20), ".3f"), (epsilon(40), ".4g"), (epsilon(60), ".4g")):
        assert f"{number:{digits}}" in told
    assert "first" not in told.split("With 1 other run on these data: ")[0]
    all_scopes = Ledger(shared).summary()["scopes"]
    assert len(all_scopes) == 3 and {scope["epsilon"] for scope in all_scopes.values()} == {epsilon(20)}


def test_each_scope_of_each_run_still_meets_its_own_target(tmp_path: Path, shared: Path) -> None:
    for name in ("first", "second"):
        join(tmp_path / name / "ledger.jsonl", shared)
        ledger = train(tmp_path / name)
        mechanism = ledger.mechanism_id("two_stage", "fit")
        with pytest.raises(BudgetExceededError, match=f"{name}-[0-9a-f]+/two_stage"):
            for _ in range(100):
                ledger.spend(mechanism)
    assert ledger.epsilon("two_stage") <= 6


def test_a_caveat_of_one_run_voids_what_all_spend_and_not_the_other(tmp_path: Path, shared: Path) -> None:
    for name in ("first", "second"):
        join(tmp_path / name / "ledger.jsonl", shared)
        ledger = train(tmp_path / name)
    ledger.caveat("two_stage", "a count was released", voids=True)
    assert ledger.summary()["epsilon"] is None
    other = Ledger(tmp_path / "first" / "ledger.jsonl").summary()
    assert other["epsilon"] == epsilon(20) and other["everything"]["epsilon"] is None
    assert "which is NOT PRIVATE" in other["everything"]["statement"]


def test_a_run_does_not_change_its_ledger(tmp_path: Path, shared: Path) -> None:
    own, joined = tmp_path / "own" / "ledger.jsonl", tmp_path / "joined" / "ledger.jsonl"
    train(own.parent, steps=1)
    with pytest.raises(LedgerError) as refused:
        join(own, shared)
    assert refused.value.about == str(own)
    join(joined, shared)
    before = joined.read_bytes()
    join(joined, shared)
    assert joined.read_bytes() == before
    with pytest.raises(LedgerError, match=r"people\.jsonl.*other\.jsonl"):
        join(joined, tmp_path / "other.jsonl")


@pytest.mark.parametrize("is_opened", [True, False], ids=["opened", "before its first line"])
def test_what_a_failed_start_joined_binds_nobody(tmp_path: Path, shared: Path, is_opened: bool) -> None:
    own, other = tmp_path / "run" / "ledger.jsonl", tmp_path / "other.jsonl"
    join(own, shared)
    late = Ledger(own)
    if is_opened:
        train(own.parent, steps=0)
    leave(own)
    join(own, other)
    assert train(own.parent).path == other and Ledger(own).epsilon() == epsilon(20)
    name = late.open(scope="two_stage", stage="fit", spec=SPEC, planned_steps=20, data_fingerprint="f00d")
    with pytest.raises(LedgerError, match="begun anew by another process"):  # whoever still holds the old one
        late.spend(name)
    assert Ledger(shared).epsilon() == 0


@pytest.mark.parametrize("what", ["a step", "a caveat", "a step whose ledger is gone"])
def test_a_ledger_that_a_run_has_told_something_stays_its_own(tmp_path: Path, shared: Path, what: str) -> None:
    for own in (tmp_path / "run" / "ledger.jsonl", tmp_path / "alone" / "ledger.jsonl"):
        if own.parent.name == "run":
            join(own, shared)
        ledger = train(own.parent, steps=int(what != "a caveat"))
        if what == "a caveat":
            ledger.caveat("two_stage", "a count was released", voids=True)
        if what == "a step whose ledger is gone" and own.parent.name == "run":
            shared.unlink()
        before = own.read_bytes()
        leave(own)
        assert own.read_bytes() == before


def test_a_folder_made_anew_spends_on_top(tmp_path: Path, shared: Path) -> None:
    run = tmp_path / "run"
    for _ in range(2):
        join(run / "ledger.jsonl", shared)
        ledger = train(run)
        shutil.rmtree(run)
    assert ledger.epsilon() == epsilon(40)


def test_checkpoints_of_another_run_are_not_paid_for_though_the_ledger_is_one(tmp_path: Path, shared: Path) -> None:
    from run_folders import sample

    for name in ("first", "second"):
        join(tmp_path / name / "ledger.jsonl", shared)
        train(tmp_path / name)
        sample(tmp_path / name, "two_stage")
    told = covered_summary(RunFolder(tmp_path / "second"))
    assert told is not None and told["epsilon"] == epsilon(20)
    assert cli.main(["verify", str(tmp_path / "second")]) == 0
    mine, theirs = (tmp_path / name / "model_two_stage/checkpoints/last.ckpt" for name in ("second", "first"))
    shutil.copy(theirs, mine)
    told = covered_summary(RunFolder(tmp_path / "second"))
    assert told is not None and told["epsilon"] is None and "last.ckpt was changed after" in told["statement"]
    assert Ledger(tmp_path / "second" / "ledger.jsonl").unpaid_reason(sha256_of(mine), "two_stage") is not None
    assert Ledger(tmp_path / "first" / "ledger.jsonl").unpaid_reason(sha256_of(mine), "two_stage") is None


def test_a_folder_in_no_ledger_is_told_so_and_not_what_its_neighbour_spent(tmp_path: Path) -> None:
    train(tmp_path)
    assert find(tmp_path / "fit") == tmp_path / "ledger.jsonl"
    (tmp_path / "public").mkdir()
    with pytest.raises(LedgerError, match=r"public.*ledger\.jsonl.* fit"):
        find(tmp_path / "public")


@pytest.mark.parametrize("shipped", ["doppel", "callbacks", "commands"])
def test_no_message_advises_to_forget_what_was_spent(shipped: str) -> None:
    advice = "(start|take|give|in) another (run folder|RUN_DIR|ledger)"
    words = ["git", "grep", "-nE", advice, "--", f"{shipped}/*.py"]
    found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
    assert [line for line in found if "spends on top" not in line] == []


def test_the_command_line_takes_the_site_s_ledger_and_keeps_to_it(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from commands.run_folder.ownership import ledger_of_run

    monkeypatch.setenv("DOPPEL_LEDGER", str(shared))
    run = tmp_path / "run"
    (run / "fit").mkdir(parents=True)
    assert ledger_of_run(run / "fit", None) == str(run / "ledger.jsonl")
    assert json.loads((run / "ledger.jsonl").read_text())["ledger"] == str(shared)
    monkeypatch.delenv("DOPPEL_LEDGER")
    assert ledger_of_run(run / "fit", None) == str(run / "ledger.jsonl")
    assert train(run).path == shared
    alone = tmp_path / "alone"
    (alone / "fit").mkdir(parents=True)
    assert ledger_of_run(alone / "fit", None) == str(alone / "ledger.jsonl")
    assert not (alone / "ledger.jsonl").exists()
    own = str(alone / "audit" / "ledger.jsonl")
    assert ledger_of_run(alone / "audit", own) == own, "an audit writes its own"
