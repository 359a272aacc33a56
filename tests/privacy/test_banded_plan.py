"""Bands: coefficients of nearly the least error, the ε of two accountants, rounds that are charged as they begin.

Attacked: that a unit moves C g by more than one column of norm 1 for each round that is on file, whatever segments,
stops and coins there are.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import toeplitz

from commands.privacy.coverage import check_budget
from doppel.console.ledger import tables
from doppel.console.plan import in_bands, over_training, report
from doppel.privacy.accounting import CalibrationError, Mechanism, compute_epsilon, cross_check
from doppel.privacy.bands import MOMENTUM, coefficients, relative_rmse, rmse
from doppel.privacy.ledger import BudgetExceededError, Ledger, LedgerError
from doppel.privacy.plan import DPPlan, PrivacyBudget
from doppel.privacy.private_step import PrivateTrainingError
from doppel.privacy.session import PrivateSession, checkpoint_every, last_step, plan_stage
from doppel.privacy.spec import PrivacyArguments, _best_bands, _rough_noise, plan

BUDGET = PrivacyBudget(3.0, 1e-5, "rdp", "utterance")


def made(bands: int = 4, steps: tuple[int, ...] = (30,), noise: float = 3.0, num_units: int = 2000) -> DPPlan:
    """A plan whose noise nobody has calibrated."""
    return DPPlan(BUDGET, num_units, 100, 0.5, noise, steps, None, None, None, bands)


def encoder(bands: int, steps: int, end: int) -> np.ndarray:
    """C of the first steps of a segment that is to end after ``end``: columns of the norm that they have until then."""
    first = np.zeros(max(end, bands))
    first[:bands] = coefficients(bands)
    whole = toeplitz(first, np.zeros(len(first)))[:end, :end]
    return (whole / np.linalg.norm(whole, axis=0))[:steps, :steps]


def workload(steps: int) -> np.ndarray:
    """What noise of each step has done to the weights after each, by a loop."""
    found = np.zeros((steps, steps))
    for begin in range(steps):
        buffer = weight = 0.0
        for step in range(begin, steps):
            buffer = MOMENTUM * buffer + (1 - MOMENTUM) * (step == begin)
            weight += buffer
            found[step, begin] = weight
    return found


@pytest.mark.parametrize("bands", [1, 2, 8, 16])
def test_the_error_is_that_of_the_matrices(bands):
    errors = workload(59) @ np.linalg.inv(encoder(bands, 59, 59))
    found = rmse(coefficients(bands), 59)
    assert found * 0.99 <= math.sqrt((errors**2).sum() / 59) <= found * (1 + 1e-9)


def test_coefficients_are_those_of_the_root_of_the_workload_and_of_norm_one():
    row = np.array(coefficients(32))
    whole = np.convolve(row, row)[:32] / row[0] ** 2 * (1 - MOMENTUM)
    np.testing.assert_allclose(whole, workload(32)[:, 0], atol=2e-5)
    for bands in (2, 4, 8, 16, 32):
        cut = np.array(coefficients(bands))
        assert cut.shape == (bands,) and 1 - 1e-4 < math.fsum(cut**2) <= 1.0
        np.testing.assert_allclose(cut / cut[0], row[:bands] / row[0], rtol=1e-4)


@pytest.mark.slow
def test_the_ratios_to_independent_noise_are_those_of_the_note():
    """N = 10,060, B = 512, T = 59, ε = 3: .80, .77 and .75 with 4, 8 and 16 bands."""
    one = plan(10_060, 512, 3, 3.0)
    for bands, expected in ((4, 0.80), (8, 0.77), (16, 0.75)):
        found = plan(10_060, 512, 3, 3.0, bands=bands)
        assert (found.stage_steps, found.independent) == ((59,), one)
        assert found.equivalent.noise_multiplier / one.noise_multiplier == pytest.approx(expected, abs=0.006)


@pytest.mark.slow
def test_epsilon_of_bands_by_two_accountants_and_by_jax_privacy():
    found = plan(10_060, 512, 3, 3.0, bands=8)
    assert found.mechanisms() == (Mechanism(8 * 512 / 10_060, found.noise_multiplier, 8),)
    epsilons, contradiction = cross_check(found.mechanisms(), 1e-5)
    assert contradiction is None and len(epsilons) == 2
    assert epsilons["pld"] == pytest.approx(3.0, abs=2e-3) and epsilons["pld"] <= 3.0
    # By jax_privacy 2.0.0 at σ = 1.9602, whose groups have ⌊N/b⌋ units: 3.00105.
    assert compute_epsilon([Mechanism(8 * 512 / 10_060, 1.9602, 8)], 1e-5) == pytest.approx(3.00105, abs=2e-3)
    jax_privacy = pytest.importorskip("jax_privacy.accounting")
    accountants, analysis = jax_privacy.accountants, jax_privacy.analysis
    params = analysis.DpParams(
        noise_multipliers=found.noise_multiplier, num_samples=10_060, batch_size=512, delta=1e-5, cycle_length=8
    )
    accountant = analysis.DpsgdTrainingAccountant(
        dp_accountant_config=accountants.PldAccountantConfig(value_discretization_interval=1e-4)
    )
    assert accountant.compute_epsilon(59, params) == pytest.approx(3.0, abs=3e-3)


@pytest.mark.parametrize(
    ("bands", "steps", "least"),
    [(4, 59, 2.2395085), (8, 59, 1.6697058), (16, 59, 1.3274936)],
)
def test_the_error_is_nearly_the_least_that_jax_privacy_finds(bands, steps, least):
    """The figures are of jax_privacy 2.0.0, ``optimization.optimize`` on its own error of this workload."""
    assert least <= rmse(coefficients(bands), steps) < 1.01 * least


@pytest.mark.parametrize(("bands", "num_units", "steps"), [(21, 2000, 59), (0, 2000, 59), (8, 2000, 7), (3, 299, 59)])
def test_a_round_draws_each_unit_at_most_once_and_is_no_longer_than_the_training(bands, num_units, steps):
    with pytest.raises(CalibrationError, match=f"bands is {bands}: give 1 to"):
        replace(made().independent, bands=bands, num_units=num_units, stage_steps=(steps,))


def test_one_band_leaves_nothing_on_disk_that_was_not_there():
    one = made().independent
    assert one.round_rate == one.sample_rate and one.rounds(30) == 30 and one.reserve(30) == 0
    assert one.equivalent == one.independent == one
    assert one.budget.allows(one.mechanisms()) and one.noise_multiplier < 3.0
    assert one.noise_scale == one.noise_multiplier * 0.5 / 100 == made().noise_scale
    assert not {"bands", "coefficients"} & one.to_dict().keys()
    found = json.loads(json.dumps(made().to_dict()))
    assert found["bands"] == 4 and found["coefficients"] == list(coefficients(4))
    assert in_bands(one) is None and "bands" not in report(one)


def test_rounds_are_what_a_training_of_bands_costs():
    found = replace(made(4, (30, 81)), histogram_noise_multiplier=9.0)
    assert found.mechanisms() == (Mechanism(0.2, 3.0, 8), Mechanism(0.2, 3.0, 22), Mechanism(1.0, 9.0, 1))
    assert [found.reserve(steps) for steps in (30, 76, 77)] == [0, 0, 1]  # of 19 rounds none, of 20 one
    told = report(found, 10_000)
    assert (told["bands"], told["rounds"], told["steps"]) == (4, 30, 111)
    assert told["gain"] == in_bands(found) and "rounds of 4 steps in reserve for restarts: 1" in told["gain"]
    assert "ends the training up to 3 steps early" in str(in_bands(made()))
    ratio = found.equivalent.noise_multiplier / found.independent.noise_multiplier
    assert f"the weights get {ratio:.2f} times the noise" in told["gain"]
    assert over_training(found, 100) == pytest.approx(ratio * over_training(found.independent, 100))


def test_auto_takes_the_fewest_bands_that_are_nearly_the_best_and_one_where_they_gain_little(monkeypatch):
    def best(noise_of: dict[int, float], num_units: int = 5000, steps: tuple[int, ...] = (59,)) -> int:
        """Where σ is such that so many bands leave the weights so much noise, by default that of one."""

        def noise(draft: DPPlan) -> float:
            return noise_of.get(draft.bands, 1.0) / relative_rmse(draft.bands, draft.stage_steps)

        monkeypatch.setattr("doppel.privacy.spec._rough_noise", noise)
        return _best_bands(replace(made().independent, num_units=num_units, stage_steps=steps))

    falling = {bands: 1.0 / bands for bands in (2, 4, 8, 16, 32)}
    assert best(falling) == 32 and best(falling, num_units=1599) == 8  # b q ≤ 1
    assert best(falling, steps=(7, 59)) == 4 and best(falling, num_units=150) == 1  # b ≤ T
    assert best({}) == 1  # all are as good
    assert best({16: 0.96}) == 1  # 4 % is no gain
    assert best({16: 0.8, 4: 0.83, 2: 0.9}) == 4


@pytest.mark.slow
def test_auto_by_a_rough_bound_takes_what_the_accountant_confirms():
    assert plan(10_060, 512, 3, 3.0, bands="auto") == plan(10_060, 512, 3, 3.0, bands=8)
    assert plan(3043, 152, 3, 0.5, bands="auto") == plan(3043, 152, 3, 0.5)
    one = plan(10_060, 512, 3, 3.0)
    rough = _rough_noise(one)
    for bands in (4, 16):
        exact = plan(10_060, 512, 3, 3.0, bands=bands).noise_multiplier / one.noise_multiplier
        assert _rough_noise(replace(one, bands=bands)) / rough == pytest.approx(exact, rel=0.02)
    hopeless = replace(made(), budget=replace(BUDGET, target_epsilon=1e-4))
    assert _rough_noise(hopeless) == pytest.approx(1e3)  # beyond its range


@settings(max_examples=150, deadline=None)
@given(data=st.data(), bands=st.integers(2, 7), planned=st.integers(8, 40))
def test_a_unit_moves_by_at_most_one_column_of_norm_one_for_each_round_that_is_charged(data, bands, planned):
    """By the matrix: segments from wherever a crash has left the weights, stops anywhere, any coins and directions."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**31)))
    session, charges = _counted(made(bands, (planned,)))
    turns, moved_squared = 0, 0.0
    for _ in range(data.draw(st.integers(1, 4))):
        first = data.draw(st.integers(0, planned - 1))
        num = data.draw(st.integers(1, planned - first))
        before = charges.total()
        for step in range(first, first + num):
            session.spend(step, first)
        rounds = charges.total() - before
        group = data.draw(st.integers(0, bands - 1))  # a die of the segment's own secret
        joined = [t for t in range(num) if (first + t) % bands == group and rng.random() < 0.8]
        change = np.zeros((num, 3))
        change[joined] = rng.normal(size=(len(joined), 3))
        change[joined] /= np.linalg.norm(change[joined], axis=1, keepdims=True)  # a clipped gradient of norm 1
        matrix = encoder(bands, num, planned - first)
        assert np.linalg.norm(matrix, axis=0).max() <= 1 + 1e-12
        assert np.count_nonzero(matrix[:, joined], axis=1).max(initial=0) <= 1  # rows of its own for each turn
        assert len(joined) <= rounds == math.ceil(num / bands)
        turns, moved_squared = turns + len(joined), moved_squared + float((matrix @ change).__pow__(2).sum())
    assert moved_squared <= turns + 1e-9 <= charges.total() + 1e-9


def _counted(spec: DPPlan) -> tuple[PrivateSession, Counter[str]]:
    """A session whose ledger only counts."""
    session = PrivateSession(PrivacyArguments(3.0, ledger_path="ledger.jsonl"), spec)
    charges = Counter[str]()
    session.ledger = SimpleNamespace(spend=lambda name: charges.update([name]))  # type: ignore[assignment]
    return session, charges


class Data:
    """As much of private data as a session asks for."""

    num_units, batch_size, unit, max_rows_per_unit = 2000, 100, "utterance", None
    privacy_caveat, data_fingerprint = None, "f00d"


def opened(path: Path, spec: DPPlan, steps: int, is_resumed: bool = False) -> tuple[PrivateSession, int]:
    privacy = PrivacyArguments(3.0, 1e-5, accountant="rdp", ledger_path=str(path))
    session = PrivateSession(privacy, spec)
    return session, session.open(Data, steps, [], is_resumed)


def test_rounds_are_charged_as_they_begin_and_a_restart_pays_from_the_reserve(tmp_path):
    spec = made(4, (80,)).calibrated()
    session, affordable = opened(tmp_path / "ledger.jsonl", spec, 80)
    assert affordable == 80
    for step in range(30):
        session.spend(step, 0)
    session.ledger.release(session.mechanism_id, sha256="ab" * 32, steps=spec.rounds(28))
    again, affordable = opened(tmp_path / "ledger.jsonl", spec, 80, is_resumed=True)
    assert again.num_spent == 8 and affordable == 52  # 12 of the 20 rounds, and the one in reserve
    assert last_step(session.privacy, 80, 28, affordable) == 80
    for step in range(28, 80):
        again.spend(step, 28)
    with pytest.raises(BudgetExceededError):
        again.spend(80, 28)
    ledger = Ledger(tmp_path / "ledger.jsonl")
    record = ledger.mechanisms[session.mechanism_id]
    assert (record.done_steps, record.planned_steps) == (21, 20)
    assert [release.steps for release in ledger.releases(record.id)] == [7]
    assert (record.key, record.kind) == ((0.2, spec.noise_multiplier), "banded_matrix_factorization")
    assert record.fields["bands"] == 4 and record.fields["coefficients"] == list(coefficients(4))
    assert ledger.epsilon("default") == compute_epsilon(spec.mechanisms(), 1e-5, "rdp") <= 3.0


def test_a_training_goes_on_whose_reserve_an_earlier_version_wrote_down_among_its_rounds(tmp_path, monkeypatch):
    spec = made(4, (80,)).calibrated()
    with monkeypatch.context() as earlier:
        terms = DPPlan.terms

        def of_earlier(self, planned_steps, data_fingerprint):
            return terms(self, planned_steps, data_fingerprint) | {"planned_steps": 21, "reserve": 1}

        earlier.setattr(DPPlan, "terms", of_earlier)
        session, _ = opened(tmp_path / "ledger.jsonl", spec, 80)
        session.spend(0, 0)
    again, affordable = opened(tmp_path / "ledger.jsonl", spec, 80, is_resumed=True)
    again.spend(1, 1)
    assert affordable == 80 and again.num_spent == 2


def test_people_read_of_rounds_and_a_whole_training_is_not_half_done(tmp_path):
    spec = made(4, (80,), noise=4.5)
    session, _ = opened(tmp_path / "ledger.jsonl", spec, 80)
    for step in range(80):
        session.spend(step, 0)
    summary = session.ledger.summary()
    scope = summary["scopes"]["default"]
    assert (scope["steps_done"], scope["steps_planned"]) == (20, 20)
    assert "20/20 rounds of 4 steps" in tables(summary)
    found, wrong = check_budget(summary, "default")
    assert not wrong and found["rdp"] == session.epsilon == session.metrics()["dp/epsilon"]
    assert session.metrics()["dp/num_rounds"] == 20 and session.metrics()["dp/sample_rate"] == 0.2
    assert "20 rounds of 4 steps of ~100" in session.statement()[1]
    assert "8 rounds of 4 steps of ~100" in session.statement(30)[1]


def test_a_training_that_the_budget_does_not_afford_is_refused_at_the_round(tmp_path):
    session, affordable = opened(tmp_path / "ledger.jsonl", made(4, (30,), noise=1.0), 30)
    assert 0 < affordable < 30 and affordable % 4 == 0
    for step in range(affordable):
        session.spend(step, 0)
    with pytest.raises(BudgetExceededError):
        session.spend(affordable, 0)


def test_a_ledger_of_one_kind_of_noise_pays_for_no_other(tmp_path):
    opened(tmp_path / "ledger.jsonl", made(4), 30)[0].spend(0, 0)
    for other in (made(2), made(4).independent):
        with pytest.raises(LedgerError, match="was opened"):
            opened(tmp_path / "ledger.jsonl", replace(other, noise_multiplier=3.0), 30)


def test_a_training_goes_on_under_its_own_bands_and_under_other_coefficients():
    """What is promised does not depend on these, and an older version had others."""
    privacy = PrivacyArguments(3.0, 1e-5, accountant="rdp", epochs=[1.0], bands=4)
    spec, steps = plan_stage(privacy, Data, 1)
    assert (spec.bands, steps) == (4, 20)
    before = {"spec": {**spec.to_dict(), "coefficients": [[0.5, 0.5, 0.5, 0.5]]}}
    assert plan_stage(privacy, Data, 1, before)[0] == plan_stage(replace(privacy, bands="auto"), Data, 1, before)[0]
    with pytest.raises(PrivateTrainingError, match="noise_multiplier"):
        plan_stage(replace(privacy, bands=1), Data, 1, before)
    old = {"spec": spec.independent.to_dict()}
    for bands in (1, "auto"):  # which would take 4 here
        assert plan_stage(replace(privacy, bands=bands), Data, 1, old)[0] == spec.independent
    with pytest.raises(PrivateTrainingError, match="bands"):
        plan_stage(privacy, Data, 1, old)


def test_checkpoints_are_kept_after_whole_rounds():
    assert [checkpoint_every(steps, bands) for steps, bands in ((59, 1), (59, 8), (653, 16), (10, 4))] == [2, 8, 32, 4]
