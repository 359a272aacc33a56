"""The ledger: the file covers what ran, budgets hold, runs resume, crashes differ from damage."""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import os
import stat
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from filelock import FileLock
from known_plans import known_plan

from commands.privacy.coverage import check_budget
from doppel.console.ledger import tables
from doppel.privacy.accounting import Mechanism, compute_epsilon
from doppel.privacy.ledger import BudgetExceededError, Ledger, LedgerError, Released
from doppel.privacy.plan import ReleasePlan
from doppel.privacy.spec import DPPlan, plan

SPEC = known_plan("stages of 20 and 80 steps")


def opened(path: Path, stage: str = "trees", scope: str = "two_stage", spec: DPPlan = SPEC, steps: int = 20):
    ledger = Ledger(path)
    return ledger, ledger.open(scope=scope, stage=stage, spec=spec, planned_steps=steps, data_fingerprint="f00d")


def spend(ledger: Ledger, name: str, steps: int) -> None:
    for _ in range(steps):
        ledger.spend(name)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "pipeline" / "ledger.jsonl"


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_every_mechanism_is_recorded_in_full_and_for_the_owner_alone(path):
    ledger, tree_id = opened(path)
    ledger.spend(tree_id)
    assert [line["type"] for line in lines(path)] == ["budget", "mechanism", "spend"]
    fields = (
        "scope stage unit sample_rate noise_multiplier max_grad_norm batch_size num_units planned_steps "
        "data_fingerprint kind time v chain"
    )
    assert set(fields.split()) <= lines(path)[1].keys()
    assert {"target_epsilon", "delta", "accountant", "unit"} <= lines(path)[0].keys()
    modes = {p: stat.S_IMODE(p.stat().st_mode) for p in (path, path.parent, path.parent.parent)}
    assert list(modes.values()) == [0o600, 0o700, 0o700]
    assert stat.S_IMODE(Path(f"{path}.lock").stat().st_mode) == 0o600
    assert {p.name for p in path.parent.iterdir()} == {"ledger.jsonl", "ledger.jsonl.lock"}


def test_a_process_that_changes_its_folder_goes_on_with_its_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ledger, trees = opened(Path("own/ledger.jsonl"))
    ledger.spend(trees)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    ledger.spend(trees)
    assert ledger.exists() and ledger.mechanisms[trees].done_steps == 2 and list(Path().iterdir()) == []
    assert sum(line["type"] == "spend" for line in lines(tmp_path / "own/ledger.jsonl")) == 2


def test_two_stages_cost_what_one_run_of_all_steps_costs(path):
    ledger, trees = opened(path)
    spend(ledger, trees, 20)
    other, utterances = opened(path, "utterances", steps=80)
    spend(other, utterances, 80)
    whole = compute_epsilon([Mechanism(SPEC.sample_rate, SPEC.noise_multiplier, 100)], SPEC.budget.delta)
    assert ledger.epsilon("two_stage") == other.epsilon() == whole <= SPEC.budget.target_epsilon


def test_a_step_past_the_budget_is_refused_and_nothing_is_written(path):
    ledger, name = opened(path, steps=100)
    spend(ledger, name, 100)
    while ledger.remaining(name):  # what rounding left over
        ledger.spend(name)
    before = path.read_bytes()
    with pytest.raises(BudgetExceededError, match=r"'two_stage' .* 5\.9\d* .* 6\.0\d*, .* 6 ") as error:
        ledger.spend(name)
    assert "\n" not in str(error.value) and error.value.about == str(path)
    assert path.read_bytes() == before
    assert ledger.epsilon("two_stage") <= SPEC.budget.target_epsilon
    fresh, same = opened(path, steps=100)
    assert fresh.remaining(same) == 0
    with pytest.raises(BudgetExceededError):
        fresh.spend(same)


def test_affordable_steps_are_exactly_those_that_spend_allows(path):
    ledger, name = opened(path, steps=100)
    spend(ledger, name, 60)
    room = ledger.remaining(name)
    assert 40 <= room < 100
    spend(Ledger(path), name, room)
    with pytest.raises(BudgetExceededError):
        Ledger(path).spend(name)
    assert ledger.remaining(name) == 0 and ledger.mechanisms[name].done_steps == 60 + room


@pytest.mark.slow
def test_room_is_held_back_for_a_histogram_until_it_is_made(path):
    spec = plan(2000, 100, [1, 4], 6.0, delta=1e-5, histogram_noise_multiplier=5.0)
    ledger, name = opened(path, spec=spec, steps=100)
    assert ledger.remaining(name, later=spec.releases) == 100, "the plan has room for both"
    spend(ledger, name, 60)  # 20 of these are lost to a crash
    room = ledger.remaining(name, later=spec.releases)
    assert 0 < room < ledger.remaining(name)
    spend(ledger, name, room)
    histogram = ledger.open(
        scope="two_stage",
        stage="histogram",
        spec=replace(spec, noise_multiplier=5.0, expected_batch_size=2000),
        planned_steps=1,
        data_fingerprint="f00d",
    )
    ledger.spend(histogram)
    assert ledger.epsilon("two_stage") <= 6.0
    assert ledger.remaining(name, later=spec.releases) == ledger.remaining(name), "it is made"


def test_a_resumed_run_continues_its_mechanism_and_rolled_back_steps_stay_spent(path):
    ledger, name = opened(path)
    spend(ledger, name, 15)
    resumed, same = opened(path)  # a checkpoint of step 10 is loaded: the ledger does not go back
    assert same == name and resumed.mechanisms[same].done_steps == 15
    for _ in range(10):
        resumed.spend(same)
    assert resumed.mechanisms[same].done_steps == 25
    assert [line["type"] for line in lines(path)].count("mechanism") == 1


@pytest.mark.parametrize("rounding", [-1e-9, 1e-9])
def test_a_run_goes_on_where_another_processor_rounds_its_noise_otherwise(path, rounding):
    ledger, name = opened(path)
    ledger.spend(name)
    sigma = SPEC.noise_multiplier
    resumed, same = opened(path, spec=replace(SPEC, noise_multiplier=sigma * (1 + rounding)))
    resumed.spend(same)
    assert resumed.mechanisms[same].key[1] == sigma and resumed.mechanisms[same].done_steps == 2
    spent = [line for line in lines(path) if line["type"] == "mechanism"]
    assert [line["noise_multiplier"] for line in spent] == [sigma], "what is charged is what it began with"
    with pytest.raises(LedgerError, match="noise_multiplier"):
        opened(path, spec=replace(SPEC, noise_multiplier=sigma * (1 + 1e4 * rounding)))


def test_room_is_not_held_back_for_a_release_whose_noise_is_rounded_otherwise(path):
    ledger, name = opened(path, spec=replace(SPEC, histogram_noise_multiplier=5.0), steps=100)
    made = replace(SPEC, noise_multiplier=5.0, expected_batch_size=2000)
    histogram = ledger.open(scope="two_stage", stage="histogram", spec=made, planned_steps=1, data_fingerprint="f00d")
    spend(ledger, name, 60)
    ledger.spend(histogram)
    room = ledger.remaining(name)
    later = [Mechanism(1.0, 5.0 * (1 + 1e-10), 1)]
    assert ledger.remaining(name, later=later) == room
    assert ledger.remaining(name, later=2 * later) < room, "of two equal ones, one is made"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"spec": replace(SPEC, noise_multiplier=2.0)}, "noise_multiplier"),
        ({"spec": replace(SPEC, max_grad_norm=1.0)}, "max_grad_norm"),
        ({"spec": replace(SPEC, budget=replace(SPEC.budget, target_epsilon=9.0))}, "target_epsilon"),
        ({"spec": replace(SPEC, budget=replace(SPEC.budget, unit="dialogue")), "stage": "other"}, "unit"),
        ({"steps": 21}, "planned_steps"),
        ({"spec": replace(SPEC, max_rows_per_unit=3)}, "max_rows_per_unit"),
    ],
)
def test_contradictory_parameters_are_named(path, change, word):
    ledger, name = opened(path)
    ledger.spend(name)
    before = path.read_bytes()
    with pytest.raises(LedgerError, match=word) as error:
        opened(path, **change)
    assert "\n" not in str(error.value)
    assert path.read_bytes() == before


def test_scopes_have_their_own_budgets_and_the_whole_composes(path):
    ledger, first = opened(path, steps=100)
    one, second = opened(path, scope="one_stage", steps=100)
    spend(ledger, first, 100)
    spend(one, second, 100)
    assert ledger.epsilon("one_stage") == ledger.epsilon("two_stage") <= 6.0 < ledger.epsilon()
    summary = ledger.summary()
    assert (
        summary["epsilon"]
        == ledger.epsilon()
        == compute_epsilon([Mechanism(SPEC.sample_rate, SPEC.noise_multiplier, 200)], SPEC.budget.delta)
    )
    assert "one utterance" in summary["statement"] and summary["delta"] == SPEC.budget.delta


def test_a_noised_histogram_is_a_plain_gaussian_of_the_same_scope(path):
    ledger, name = opened(path)
    histogram = ReleasePlan(SPEC.budget, "gaussian", 2000, 20.0)
    extra = ledger.open(scope="two_stage", stage="labels", spec=histogram, planned_steps=1, data_fingerprint="f00d")
    spend(ledger, name, 20)
    ledger.spend(extra)
    expected = [Mechanism(SPEC.sample_rate, SPEC.noise_multiplier, 20), Mechanism(1.0, 20.0, 1)]
    assert ledger.epsilon("two_stage") == compute_epsilon(expected, SPEC.budget.delta)


def test_the_statement_says_how_many_rows_of_a_unit_are_used_if_all_stages_say_so(path):
    spec = replace(SPEC, budget=replace(SPEC.budget, unit="dialogue"))
    opened(path, "trees", spec=replace(spec, max_rows_per_unit=2))
    ledger, _ = opened(path, "utterances", spec=replace(spec, max_rows_per_unit=4))
    words = "one dialogue (all its requests, however many; each step uses at most 4 of them, chosen uniformly)"
    assert words in ledger.summary()["statement"]
    assert ledger.summary()["scopes"]["two_stage"]["protects"] == words
    opened(path, "unsaid", spec=spec)
    assert "at most" not in ledger.summary()["statement"]


def test_unlike_units_have_no_common_epsilon(path):
    ledger, name = opened(path)
    ledger.spend(name)
    opened(path, scope="by_dialogue", spec=replace(SPEC, budget=replace(SPEC.budget, unit="dialogue")))
    with pytest.raises(LedgerError, match="dialogue, utterance"):
        ledger.epsilon()
    assert ledger.summary()["epsilon"] is None and ledger.epsilon("two_stage") > 0


SPEND = b'{"type": "spend", "mechanism": "two_stage/trees", "steps": 1, "time": "2030-01-01T00:00:00+00:00"}'


def next_line(path: Path, name: str) -> bytes:
    """The line that the next step would write, without its end."""
    before = path.read_bytes()
    Ledger(path).spend(name)
    line = path.read_bytes().splitlines()[-1]
    path.write_bytes(before)
    return line


@pytest.mark.parametrize(
    ("fragment", "others"),
    [
        pytest.param(None, 0, id="only-the-newline-is-lost"),
        pytest.param(100, 0, id="the-chain-is-lost"),
        pytest.param(60, 0, id="the-mechanism-is-named"),
        pytest.param(40, 1, id="the-mechanism-is-lost"),
        pytest.param(1, 1, id="everything-is-lost"),
        pytest.param(b"\x00\x00\x00", 1, id="zeros-from-the-file-system"),
        pytest.param(b'{"type": "mechanism", "id": "two_st', 1, id="no-spend"),
    ],
)
def test_a_line_torn_by_a_crash_counts_as_one_step_and_the_ledger_goes_on(path, fragment, others):
    ledger, name = opened(path)
    _, other = opened(path, "utterances", steps=80)
    spend(ledger, name, 4)
    if not isinstance(fragment, bytes):
        fragment = next_line(path, name)[:fragment]
    with path.open("ab") as file:
        file.write(fragment)
    reader = Ledger(path)
    assert [reader.mechanisms[own].done_steps for own in (name, other)] == [5, others], "a reader counts it"
    before = path.read_bytes()
    ledger.spend(name)
    settled = ledger.mechanisms[name].done_steps
    assert settled == Ledger(path).mechanisms[name].done_steps == 6, "a writer ends it, and never takes it back"
    assert ledger.mechanisms[other].done_steps == others
    assert path.read_bytes().startswith(before), "the file is only ever appended to"
    Ledger(path).spend(name)
    assert Ledger(path).mechanisms[name].done_steps == settled + 1


def test_lines_torn_one_after_another_are_charged_one_by_one(path):
    ledger, name = opened(path)
    spend(ledger, name, 4)
    with path.open("ab") as file:
        file.write(SPEND[:66] + b'\n{"v": 3, "type": "cav')
    assert Ledger(path).mechanisms[name].done_steps == 6
    Ledger(path).spend(name)
    assert Ledger(path).mechanisms[name].done_steps == 7


@pytest.mark.parametrize("cut", [45, 70, -1])
@pytest.mark.parametrize("kind", ["release", "caveat", "spend"])
def test_a_torn_line_of_what_spends_nothing_takes_no_budget_past_its_target(path, kind, cut):
    ledger, name = opened(path)
    _, other = opened(path, "utterances", steps=80)
    spend(ledger, name, 4)
    before = path.read_bytes()
    calls = {
        "caveat": lambda: ledger.caveat("two_stage", "of a kind", voids=False),
        "spend": lambda: ledger.spend(name),
    }
    calls.get(kind, lambda: ledger.release(name, sha256="ab" * 32))()
    written = path.read_bytes()[len(before) :][:cut]
    found = {}
    for what, torn in (("cut", written), ("zeros", written[:40] + b"\0\0"), ("two", written[:40] + SPEND[:60])):
        path.write_bytes(before + torn)
        reader = Ledger(path)
        done = [reader.mechanisms[own].done_steps for own in (name, other)]
        reader.spend(name)
        assert [reader.mechanisms[own].done_steps for own in (name, other)] == [done[0] + 1, done[1]]
        found[what] = done[0]
    assert found == {"cut": 4 if kind != "spend" else 5, "zeros": 5, "two": 5}


def test_a_torn_line_is_told_with_its_number_and_how_to_mend_it(path):
    ledger, name = opened(path)
    with pytest.raises(BudgetExceededError):
        spend(ledger, name, 200)
    steps = ledger.mechanisms[name].done_steps
    with path.open("ab") as file:
        file.write(SPEND[:66])
    for _ in range(2):  # cut, and ended
        summary = Ledger(path).summary()
        (wrong,) = check_budget(summary, "two_stage")[1]
        assert "above its target" in wrong and f"line {steps + 3} is torn" in wrong
        assert f"1 of the {steps + 1} steps of two_stage/trees" in wrong
        assert "put a copy of the file back" in tables(summary)
        with path.open("ab") as file:
            file.write(b"\n")


def test_numbers_are_paid_and_released_in_one_line_and_files_after_their_steps(path):
    ledger, name = opened(path)
    sums = {"round": 1, "sums": [1.5, -2.25]}
    ledger.spend(name, sums)
    with pytest.raises(LedgerError, match="1 are spent"):
        ledger.release(name, sha256="ab" * 32, steps=2)
    ledger.spend(name)
    for _ in range(2):  # a file is named once, however often it is saved
        ledger.release(name, sha256="ab" * 32)
    ledger.release(name, content={"marginal": [0]})
    found = Ledger(path).releases(name)
    assert found == [Released(1, content=sums), Released(2, "ab" * 32), Released(2, content={"marginal": [0]})]
    assert ledger.unpaid_reason("ab" * 32, "two_stage") is None
    assert "it was charged to" in str(ledger.unpaid_reason("ab" * 32, "one_stage"))
    assert "no release of it" in str(ledger.unpaid_reason("cd" * 32, "two_stage"))
    assert ledger.releases("two_stage/none") == []


def test_a_release_that_cannot_be_paid_is_not_written(path):
    ledger, name = opened(path, spec=replace(SPEC, budget=replace(SPEC.budget, target_epsilon=0.01)))
    before = path.read_bytes()
    with pytest.raises(BudgetExceededError):
        ledger.spend(name, {"sums": [1.0]})
    assert path.read_bytes() == before and ledger.releases(name) == []


@pytest.mark.parametrize("cut", range(1, 200, 7))
def test_a_torn_line_of_numbers_is_charged_and_holds_no_numbers(path, cut):
    ledger, name = opened(path)
    ledger.spend(name)
    before = len(path.read_bytes())
    ledger.spend(name, {"sums": list(range(20))})
    path.write_bytes(path.read_bytes()[: before + cut])
    torn = Ledger(path)
    assert torn.mechanisms[name].done_steps == 2 and torn.releases(name) == []


def test_a_ledger_of_the_second_form_is_shown_and_not_gone_on_with(path):
    path.parent.mkdir(parents=True)
    terms = asdict(SPEC.budget)
    mechanism = {"kind": "poisson_subsampled_gaussian", "planned_steps": 20, "data_fingerprint": "f00d", **terms}
    mechanism |= {"max_rows_per_unit": None, "sample_rate": SPEC.sample_rate, "batch_size": 100, "num_units": 2000}
    mechanism |= {"noise_multiplier": SPEC.noise_multiplier, "max_grad_norm": 0.1}
    names = {"id": "two_stage/trees", "scope": "two_stage", "stage": "trees"}
    written = since = b""
    for record in (
        {"type": "ledger", "version": 2, "identity": "ab" * 16},
        {"type": "budget", "scope": "two_stage", **terms},
        {"type": "mechanism", **names, **mechanism},
        {"type": "spend", "mechanism": "two_stage/trees", "steps": 1},
        {"type": "weights", "mechanism": "two_stage/trees", "steps": 1, "fingerprint": "00"},
    ):
        body = json.dumps({**record, "time": "2026-01-01T00:00:00+00:00"}).encode()[:-1]
        chain = hashlib.sha256(since + body).hexdigest().encode()
        written += body + b', "chain": "' + chain + b'"}\n'
        since = chain
    path.write_bytes(written)
    assert Ledger(path).summary()["scopes"]["two_stage"]["steps_done"] == 1
    with pytest.raises(LedgerError, match="earlier version"):
        Ledger(path).spend("two_stage/trees")
    with pytest.raises(LedgerError, match="earlier version"):
        opened(path)
    assert path.read_bytes() == written


def append_chained(path: Path, text: str) -> None:
    """Append lines of which only what they say is wrong: no secret is in the chain of the last."""
    body = text.rstrip()[:-1]
    chain = hashlib.sha256((lines(path)[-1]["chain"] + body).encode()).hexdigest()
    with path.open("a") as file:
        file.write(f'{body}, "chain": "{chain}"}}\n')


@pytest.mark.parametrize(
    "line",
    [
        '{"type": "spend", "mechanism": "two_stage/trees"}\n',
        '{"type": "spend", "mechanism": "elsewhere", "steps": 1}\n',
        '{"type": "spend", "mechanism": "two_stage/trees", "steps": -5}\n',
        '{"type": "repair", "charged": {"two_stage/trees": -5}}\n',
        '{"v": 3, "type": "release", "mechanism": "two_stage/trees", "steps": 2, "sha256": "00"}\n',
        '{"v": 3, "type": "release", "mechanism": "two_stage/trees", "steps": 1}\n',
        '{"v": 4, "type": "caveat", "scope": "two_stage", "text": "", "voids": false}\n',
        '{"type": "refund"}\n',
    ],
)
def test_damage_in_the_middle_is_an_error_with_its_line(path, line):
    ledger, name = opened(path)
    ledger.spend(name)
    append_chained(path, line)
    places = {f"{path}, line 4"}
    with pytest.raises(LedgerError) as error:
        Ledger(path).summary()
    assert error.value.about in places
    for _ in range(2):  # and it does not go away by asking again
        with pytest.raises(LedgerError) as error:
            ledger.spend(name)
        assert error.value.about in places


def test_a_shortened_file_is_noticed(path):
    ledger, name = opened(path)
    ledger.spend(name)
    os.truncate(path, 50)
    with pytest.raises(LedgerError) as error:
        ledger.spend(name)
    assert error.value.about == str(path)


def test_a_lock_that_stays_taken_is_a_clear_error(path):
    _, name = opened(path)
    with FileLock(f"{path}.lock"), pytest.raises(LedgerError, match="lock_timeout"):
        Ledger(path, lock_timeout=0.05).spend(name)


def test_an_unwritable_place_and_an_unknown_mechanism_are_clear_errors(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError, match=r"file.ledger\.jsonl"):
        opened(tmp_path / "file" / "ledger.jsonl")
    with pytest.raises(LedgerError, match="'a/b'"):
        Ledger(tmp_path / "ledger.jsonl").spend("a/b")
    assert Ledger(tmp_path / "none.jsonl").epsilon() == 0.0 and not (tmp_path / "none.jsonl").exists()


def _spend_often(path: Path, stage: str) -> None:
    ledger, name = opened(path, stage, steps=40)
    for _ in range(15):
        ledger.spend(name)


@pytest.mark.slow
def test_processes_share_one_ledger_without_losing_a_step(path):
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_spend_often, args=(path, stage)) for stage in ("trees", "utterances")]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=120)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert [m["done_steps"] for m in Ledger(path).summary()["mechanisms"]] == [15, 15]


def test_an_epsilon_that_is_no_number_admits_no_step(path, monkeypatch):
    ledger, name = opened(path)
    monkeypatch.setattr("doppel.privacy.plan.compute_epsilon", lambda *a, **k: math.nan)
    with pytest.raises(BudgetExceededError):
        ledger.spend(name)
    assert ledger.mechanisms[name].done_steps == 0


def test_spending_does_not_account_anew_at_every_step(path, monkeypatch):
    ledger, name = opened(path, steps=100)
    calls = []
    monkeypatch.setattr("doppel.privacy.plan.compute_epsilon", lambda *a, **k: calls.append(a) or 1.0)
    for _ in range(100):
        ledger.spend(name)
    assert len(calls) == 1


OTHER = known_plan("stages of 10 and 40 steps")  # under another promise


def test_what_spent_nothing_may_begin_anew_under_other_terms(path):
    """As after a start that failed before its first step; its other stages go with it."""
    opened(path)
    opened(path, "utterances", steps=80)
    ledger, name = opened(path, spec=OTHER, steps=10)
    spend(ledger, name, 10)
    summary = Ledger(path).summary()
    assert [m["id"] for m in summary["mechanisms"]] == ["two_stage/trees"]
    assert summary["scopes"]["two_stage"]["target_epsilon"] == 3.0
    fresh, same = opened(path.with_name("fresh.jsonl"), spec=OTHER, steps=10)
    spend(fresh, same, 10)
    assert ledger.epsilon("two_stage") == fresh.epsilon("two_stage") > 0  # nothing on top


@pytest.mark.parametrize("spent_stage", ["trees", "utterances"])
def test_one_step_fixes_the_terms_of_its_scope(path, spent_stage):
    opened(path)
    ledger, name = opened(path, spent_stage)
    ledger.spend(name)
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="opened with"):
        opened(path, spec=OTHER)
    assert path.read_bytes() == before


def test_data_of_other_units_are_charged_to_no_budget_that_has_begun(path):
    """The card would say that stages were given different numbers of units, for all that was charged."""
    grown = replace(SPEC, num_units=SPEC.num_units + 1)
    opened(path, "utterances", spec=grown)
    ledger, name = opened(path)
    ledger.spend(name)
    before = path.read_bytes()
    with pytest.raises(LedgerError, match=f"of {SPEC.num_units + 1} units, and .* was for {SPEC.num_units}"):
        opened(path, "utterances", spec=grown)
    assert path.read_bytes() == before
    opened(path, "utterances")


def test_of_data_that_changed_their_fingerprint_is_named_and_not_what_follows_from_their_number(path):
    ledger, name = opened(path)
    ledger.spend(name)
    grown = replace(SPEC, num_units=SPEC.num_units + 1, expected_batch_size=SPEC.expected_batch_size + 1)
    terms = {"scope": "two_stage", "stage": "trees", "spec": grown, "planned_steps": 20, "data_fingerprint": "beef"}
    with pytest.raises(LedgerError, match="opened for other private data.*restore the private file"):
        ledger.open(**terms)


def test_a_torn_step_fixes_the_terms_too(path):
    ledger, name = opened(path)
    ledger.spend(name)
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])  # the crash came while the line of the only step was written
    with pytest.raises(LedgerError, match="opened with"):
        opened(path, spec=OTHER)
    assert Ledger(path).mechanisms[name].done_steps == 1


def test_a_process_of_the_old_terms_takes_no_step_under_the_new_ones(path):
    """Its noise is that of the old terms, and the line would say that of the new ones."""
    old, name = opened(path)
    assert old.remaining(name) == 20
    new, _ = opened(path, spec=OTHER, steps=10)
    with pytest.raises(LedgerError, match="declared"):
        old.spend(name)
    assert new.mechanisms[name].done_steps == 0
    new.spend(name)
    with pytest.raises(LedgerError, match="opened with"):
        opened(path)


def test_what_an_old_budget_affords_says_nothing_of_a_new_one(path):
    """One ledger object that outlives the change counts by the promise that holds now."""
    ledger, name = opened(path)
    assert ledger.remaining(name) == 20
    tight = replace(SPEC, budget=replace(SPEC.budget, target_epsilon=0.05))
    ledger.open(scope="two_stage", stage="trees", spec=tight, planned_steps=20, data_fingerprint="f00d")
    room = ledger.remaining(name)
    assert room < 20
    spend(ledger, name, room)
    with pytest.raises(BudgetExceededError):
        ledger.spend(name)
