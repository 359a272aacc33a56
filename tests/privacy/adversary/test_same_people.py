"""The attacker spends on the same people in sibling folders, each with a ledger of its own that knows of no other."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import stat
from pathlib import Path

import pytest
from known_plans import known_plan

from doppel.console.ledger import tables
from doppel.errors import UserError
from doppel.privacy import _ledger_notes as notes
from doppel.privacy.accounting import Mechanism, compute_epsilon
from doppel.privacy.ledger import BudgetExceededError, Ledger, LedgerError, join
from doppel.privacy.spec import PrivacyArguments, plan

SPEC = known_plan("one epoch")
DATA = "f00d" * 16


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DOPPEL_KEY", str(tmp_path / "site" / "key"))
    return tmp_path / "site"


def train(
    run: Path,
    steps: int = 20,
    scope: str = "two_stage",
    total: float | None = None,
    data: str = DATA,
    file: str | None = None,
) -> Ledger:
    """What a training does to the ledger of its run folder."""
    ledger = Ledger(run / "ledger.jsonl")
    terms = {"spec": SPEC, "planned_steps": 20, "data_fingerprint": data, "total_epsilon": total, "data_file": file}
    name = ledger.open(scope=scope, stage="fit", **terms)  # type: ignore[arg-type]
    for _ in range(steps):
        ledger.spend(name)
    return ledger


def epsilon(steps: int) -> float:
    return compute_epsilon([Mechanism(SPEC.sample_rate, SPEC.noise_multiplier, steps)], SPEC.budget.delta, "rdp")


def everything(ledger: Ledger) -> dict:
    return Ledger(ledger.path).summary()["everything"]


def test_six_runs_in_sibling_folders_know_of_one_another(tmp_path: Path) -> None:
    ledgers = [train(tmp_path / f"run{number}") for number in range(6)]
    for ledger in ledgers:
        told = everything(ledger)
        assert told["num_runs"] == 6 and told["epsilon"] == told["target_epsilon"] == epsilon(120) > epsilon(20)
        assert told["statement"].startswith("With 5 other runs on these data: Everything ever spent (")
        assert all(other.path.parent.name in told["statement"] for other in ledgers if other is not ledger)
        assert told["statement"] in tables(Ledger(ledger.path).summary())
    assert ledgers[0].summary()["epsilon"] == epsilon(20), "its own stays its own"


def test_other_data_are_other_people_and_a_run_that_resumes_is_the_same_run(tmp_path: Path) -> None:
    train(tmp_path / "other", data="beef" * 16)
    for steps in (0, 7, 13, 0):  # it starts, is killed, resumes, and draws later
        own = train(tmp_path / "own", steps)
    assert everything(own)["num_runs"] == 1 and len(notes._read()) == 2
    train(tmp_path / "never", steps=0)
    assert everything(own)["num_runs"] == 1, "what was declared and never paid is no run"


def test_other_rows_and_columns_of_one_file_are_the_same_people(tmp_path: Path) -> None:
    """A label that is read, a schema with a comment more, or a share of the rows make another fingerprint."""
    file = "cafe" * 16
    first = train(tmp_path / "plain", data=file, file=file)  # as the usual columns have it
    second = train(tmp_path / "labels", data="beef" * 16, file=file)
    train(tmp_path / "else", data="dead" * 16, file="0123" * 16)
    for ledger in (first, second):
        assert everything(ledger)["num_runs"] == 2 and everything(ledger)["epsilon"] == epsilon(40)
    coming = Ledger(tmp_path / "new" / "ledger.jsonl").everything(data_fingerprints=["1234" * 16], data_files=[file])
    assert coming["num_runs"] == 3, "the new one too: known before anything is paid"
    with pytest.raises(BudgetExceededError, match="2 other runs"):
        train(tmp_path / "third", total=epsilon(50), data="1234" * 16, file=file)
    assert file not in notes.notes_path().read_text(), "keyed, as all of them"


def test_notes_of_an_earlier_version_name_no_file_and_are_found_by_what_they_name(tmp_path: Path) -> None:
    file = "cafe" * 16
    old = train(tmp_path / "old", data=file)
    lines = [json.loads(line) for line in notes.notes_path().read_text().splitlines()]
    notes.notes_path().write_text(
        "".join(json.dumps({k: v for k, v in n.items() if k != "file"}) + "\n" for n in lines)
    )
    train(tmp_path / "new", data="beef" * 16, file=file)
    assert everything(old)["num_runs"] == 2
    train(tmp_path / "old", steps=0, data=file, file=file)  # goes on, and is noted anew
    assert everything(old)["num_runs"] == 2 and len(notes._read()) == 3


def test_a_ledger_that_was_moved_or_copied_counts_once(tmp_path: Path) -> None:
    train(tmp_path / "first", steps=12)
    (tmp_path / "first").rename(tmp_path / "moved")
    train(tmp_path / "moved", steps=4)
    shutil.copytree(tmp_path / "moved", tmp_path / "copied")
    copied = train(tmp_path / "copied", steps=4)
    for ledger in (copied, Ledger(tmp_path / "moved" / "ledger.jsonl"), train(tmp_path / "second")):
        told = everything(ledger)
        assert told["gone"] == [], "it lies elsewhere"
    assert told["epsilon"] == epsilon(40)
    assert everything(copied)["num_runs"] == 2, "itself, whatever it was copied from, and the second one"


def test_runs_that_begin_in_the_same_second_under_the_same_terms_are_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the tasks of an array do."""
    import datetime

    from doppel.privacy import _ledger_file

    class Frozen(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # type: ignore[override]
            return datetime.datetime(2026, 1, 1, tzinfo=tz)

    monkeypatch.setattr(_ledger_file.datetime, "datetime", Frozen)
    for name in ("a", "b"):
        ledger = train(tmp_path / name)
    assert everything(ledger)["epsilon"] == epsilon(40)


def test_a_ledger_that_is_gone_is_named_and_not_dropped(tmp_path: Path) -> None:
    for name in ("deleted", "damaged", "again"):
        train(tmp_path / name)
    shutil.rmtree(tmp_path / "deleted")
    shutil.rmtree(tmp_path / "again")
    (tmp_path / "damaged" / "ledger.jsonl").write_text('{"no": "ledger"}\n')
    told = everything(train(tmp_path / "again"))  # in the folder of one that was deleted
    assert told["num_runs"] == 4 and told["epsilon"] == epsilon(20)
    lost = {f"{name}/two_stage" for name in ("deleted", "damaged", "again")}
    assert {own["budget"] for own in told["gone"]} == lost
    assert {own["target_epsilon"] for own in told["gone"]} == {6.0}
    assert "The ledger is gone, and so not in this epsilon, of" in told["statement"]
    with pytest.raises(BudgetExceededError, match=r"The targets of those that are gone, 18, count on top"):
        train(tmp_path / "new", total=20.0)


@pytest.mark.parametrize(("file", "number"), [("cafe" * 16, 1), (None, 2)])
def test_other_columns_of_one_file_are_no_other_version_of_the_data(
    tmp_path: Path, file: str | None, number: int
) -> None:
    for scope, data in (("rows", DATA), ("votes", "beef" * 16)):
        ledger = train(tmp_path / "run", scope=scope, data=data, file=file)
    assert everything(ledger)["num_data_sets"] == number


def test_of_many_that_are_gone_some_are_named(tmp_path: Path) -> None:
    for number in range(15):
        train(tmp_path / str(number))
        shutil.rmtree(tmp_path / str(number))
    told = everything(train(tmp_path / "run"))
    assert len(told["gone"]) == 15 and told["lost"].count("target epsilon") == 12 and told["lost"].endswith(", 3 more")
    assert told["short"].endswith("are budgets with target ε = 15 times 6")


def test_one_folder_that_was_deleted_again_and_again_is_named_once(tmp_path: Path) -> None:
    for _ in range(3):
        train(tmp_path / "run")
        shutil.rmtree(tmp_path / "run")
    told = everything(train(tmp_path / "other"))
    assert len(told["gone"]) == 3 and told["lost"] == "3 times run/two_stage (target epsilon = 6)"


def test_the_notes_hold_no_count_and_nothing_computed_of_the_data_but_a_keyed_fingerprint(
    tmp_path: Path, site: Path
) -> None:
    ledger = train(tmp_path / "run")
    (line,) = map(json.loads, notes.notes_path().read_text().splitlines())
    assert line.pop("run") and line.pop("data") == ledger.summary()["mechanisms"][0]["data_fingerprint"] != DATA
    assert line == {"ledger": str(ledger.path), "scope": "two_stage", "target_epsilon": 6.0, "file": ""}
    assert stat.S_IMODE(notes.notes_path().stat().st_mode) == 0o600 and stat.S_IMODE(site.stat().st_mode) == 0o700


def _train_apart(folder: Path, number: int) -> None:
    train(folder / f"run{number}", steps=1)


def test_many_processes_write_their_notes_and_torn_lines_hide_none(tmp_path: Path) -> None:
    train(tmp_path / "run")
    with notes.notes_path().open("ab") as file:
        file.write(b'{"data": "torn')
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_train_apart, args=(tmp_path, number)) for number in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert everything(Ledger(tmp_path / "run" / "ledger.jsonl"))["num_runs"] == 9


def test_a_total_is_kept_to_over_runs_and_refused_before_anything_is_paid(tmp_path: Path) -> None:
    train(tmp_path / "first", total=epsilon(40) + 0.01)
    own = train(tmp_path / "second", total=epsilon(40) + 0.01)
    with pytest.raises(BudgetExceededError, match=r"past privacy.total_epsilon.*With 2 other runs.*first/two_stage"):
        train(tmp_path / "third", steps=0, total=epsilon(40) + 0.01)
    assert not Ledger(tmp_path / "third" / "ledger.jsonl").spent("two_stage")
    with pytest.raises(BudgetExceededError, match="budget 'labels' would take"):
        train(tmp_path / "second", scope="labels", steps=0, total=epsilon(40) + 0.01)
    train(tmp_path / "second", steps=0, total=epsilon(40) + 0.01)  # a run that goes on is none more
    assert everything(own)["epsilon"] == epsilon(40)


def test_of_two_that_begin_at_once_the_total_takes_one_and_its_plan_is_kept_for_it(tmp_path: Path) -> None:
    ledgers, total = [Ledger(tmp_path / name / "ledger.jsonl") for name in ("a", "b")], epsilon(20) + 0.01
    names = [
        ledger.open(scope="s", stage="fit", spec=SPEC, planned_steps=20, data_fingerprint=DATA, total_epsilon=total)
        for ledger in ledgers
    ]
    ledgers[0].spend(names[0])
    with pytest.raises(BudgetExceededError, match="other run on these data"):
        ledgers[1].spend(names[1])
    assert not ledgers[1].spent("s")
    for _ in range(19):
        ledgers[0].spend(names[0])
    assert ledgers[0].remaining(names[0]) == 0


def test_steps_that_a_crash_lost_are_made_up_for_only_where_the_total_affords_them(tmp_path: Path) -> None:
    roomy = plan(2000, 100, 0.5, 6.0, delta=1e-5, accountant="rdp")  # its target affords more steps of SPEC's noise

    def room(name: str, total: float) -> int:
        ledger = Ledger(tmp_path / name / "ledger.jsonl")
        terms = {"spec": SPEC, "planned_steps": 10, "data_fingerprint": name, "total_epsilon": total}
        mechanism = ledger.open(scope="s", stage="fit", **terms)  # type: ignore[arg-type]
        for _ in range(10):
            ledger.spend(mechanism)
        return ledger.remaining(mechanism)

    assert roomy.steps == 10 and room("wide", 100.0) == 10 and room("narrow", 6.0) == 10
    other = train(tmp_path / "narrow2", data="narrow", steps=1)
    assert other.summary()["everything"]["num_runs"] == 2
    ledger = Ledger(tmp_path / "narrow" / "ledger.jsonl")
    mechanism = ledger.open(
        scope="s", stage="fit", spec=SPEC, planned_steps=10, data_fingerprint="narrow", total_epsilon=6.0
    )
    assert ledger.remaining(mechanism) == 0
    with pytest.raises(BudgetExceededError, match="past privacy.total_epsilon"):
        ledger.spend(mechanism)


def test_no_total_holds_beside_a_release_that_is_not_private_or_protects_another_unit(tmp_path: Path) -> None:
    train(tmp_path / "first").caveat("two_stage", "a count was released", voids=True)
    with pytest.raises(BudgetExceededError, match="first/two_stage, which is NOT PRIVATE"):
        train(tmp_path / "second", total=100.0)
    other = plan(2000, 100, 1, 6.0, delta=1e-5, accountant="rdp", unit="user")
    ledger = Ledger(tmp_path / "users" / "ledger.jsonl")
    ledger.spend(ledger.open(scope="s", stage="fit", spec=other, planned_steps=20, data_fingerprint="cafe"))
    with pytest.raises(BudgetExceededError, match="protect different units"):
        train(tmp_path / "rows", data="cafe", total=100.0)


def test_a_total_below_the_target_is_refused() -> None:
    with pytest.raises(UserError, match="total_epsilon is 3"):
        PrivacyArguments(8.0, total_epsilon=3.0)


def test_notes_that_cannot_be_written_are_a_caveat_and_refused_where_a_total_needs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home that is read-only on the nodes of a cluster, with a key that was made where it is not."""
    train(tmp_path / "before")

    def refuse(note: notes.Note) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("doppel.privacy._ledger_total.write", refuse)
    ledger = train(tmp_path / "run")
    assert "do not know of it" in ledger.summary()["statement"] and ledger.epsilon("two_stage") == epsilon(20)
    assert str(tmp_path) not in json.dumps(ledger.summary()["scopes"])
    with pytest.raises(LedgerError, match="Read-only file system.*total_epsilon.*DOPPEL_KEY"):
        train(tmp_path / "limited", total=100.0)
    assert not Ledger(tmp_path / "limited" / "ledger.jsonl").spent("two_stage")


def test_a_ledger_of_many_runs_and_one_beside_it_add_up(tmp_path: Path) -> None:
    shared = tmp_path / "people.jsonl"
    for name in ("first", "second"):
        join(tmp_path / name / "ledger.jsonl", shared)
        train(tmp_path / name)
    alone = train(tmp_path / "alone")
    for ledger in (alone, Ledger(tmp_path / "first" / "ledger.jsonl")):
        told = ledger.summary()["everything"]
        assert told["num_runs"] == 3 and told["epsilon"] == epsilon(60)


def test_a_run_that_is_stopped_states_its_target_and_not_what_it_has_spent(tmp_path: Path) -> None:
    """Stopped because of what it had shown, epsilon spent so far is no bound: the target is one."""
    told = train(tmp_path / "run", steps=5).summary()
    assert told["target_epsilon"] == 6.0 and told["epsilon"] == epsilon(5) < 6.0
    assert "is (epsilon = 6, " in told["statement"] and f"spent so far: epsilon = {epsilon(5):.4g}" in told["statement"]
    train(tmp_path / "run", steps=5, scope="one_stage")
    told = train(tmp_path / "other", steps=5).summary()["everything"]
    assert told["target_epsilon"] == epsilon(60) and told["epsilon"] == epsilon(15)


def test_without_a_key_nothing_is_known_of_other_runs_and_nothing_is_made(tmp_path: Path, site: Path) -> None:
    ledger = train(tmp_path / "run")
    shutil.rmtree(site)
    assert everything(ledger)["num_runs"] == 1 and not os.path.exists(site)
