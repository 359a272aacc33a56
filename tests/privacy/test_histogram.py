"""The noised histogram: what one unit can move, how its noise is spread, and one budget with the training."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from hypothesis import given
from hypothesis import strategies as st

from doppel.privacy.accounting import Accountant, CalibrationError, compute_epsilon
from doppel.privacy.histogram import add_noise, normalise, unit_sums
from doppel.privacy.ledger import BudgetExceededError, Ledger
from doppel.privacy.release import NoisyHistogram, declare
from doppel.privacy.spec import PrivacyArguments, plan

BINS = ["Alarm", "Banks", "Music"]
VECTORS = st.dictionaries(st.sampled_from([*BINS, "elsewhere"]), st.floats(-1e6, 1e6), max_size=4)
ROWS = st.lists(st.tuples(st.sampled_from("abcd"), VECTORS), max_size=12)


@given(rows=ROWS, of_one=st.lists(VECTORS, max_size=6), place=st.integers(0, 12))
def test_adding_a_unit_moves_the_histogram_by_at_most_one(
    rows: list[tuple[str, dict[str, float]]], of_one: list[dict[str, float]], place: int
) -> None:
    more = [*rows[:place], *(("new", vector) for vector in of_one), *rows[place:]]
    before, after = unit_sums(rows, BINS), unit_sums(more, BINS)
    assert list(before) == list(after) == BINS
    assert math.dist(list(before.values()), list(after.values())) <= 1 + 1e-9


def test_an_utterance_counts_once_and_a_dialogue_by_its_shares() -> None:
    banks, music = {"Banks": 1.0}, {"Music": 1.0}
    assert unit_sums([("a", banks), ("b", banks), ("c", {})], BINS) == {"Alarm": 0, "Banks": 2, "Music": 0}
    assert unit_sums([("a", banks), ("a", music), ("a", music), ("a", {"unknown": 1.0})], BINS)["Music"] == 0.5
    both = unit_sums([("a", banks | music)], BINS)  # of norm 1
    assert both["Banks"] == both["Music"] == pytest.approx(math.sqrt(0.5))


def test_noise_has_the_stated_scale_on_every_bin() -> None:
    bins = {str(i): 1000.0 for i in range(20_000)}
    noise = np.array(list(add_noise(bins, 7.0).values())) - 1000.0
    assert abs(noise.std() / 7.0 - 1) < 0.03
    assert abs(noise.mean()) < 0.25
    empty = np.array(list(add_noise(dict.fromkeys(bins, 0.0), 7.0).values()))
    assert abs(empty.std() / 7.0 - 1) < 0.03  # a bin without a unit looks as one with few


def test_noise_is_new_each_time_unless_a_seed_is_given_which_warns() -> None:
    sums = {"a": 100.0, "b": 100.0}
    assert add_noise(sums, 1.0) != add_noise(sums, 1.0)
    with pytest.warns(UserWarning, match="NOT PRIVATE"):
        add_noise(sums, 1.0, seed=1)
    with pytest.raises(ValueError, match="noise_multiplier"):
        add_noise(sums, 0.0)


def test_probabilities_sum_to_one_even_where_nothing_is_left() -> None:
    assert normalise({"a": 1.0, "b": 3.0}) == {"a": 0.25, "b": 0.75}
    assert normalise({"a": 1.0, "b": -3.0}) == {"a": 1.0, "b": 0.0}
    assert normalise({"a": -1.0, "b": 0.0}) == {"a": 0.5, "b": 0.5}


def test_dp_accounting_itself_composes_histogram_and_training_to_the_target() -> None:
    spec = plan(10_060, 512, [1, 2], 3.0, histogram_noise_multiplier=10.0)
    accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=1e-3)
    step = PoissonSampledDpEvent(spec.sample_rate, GaussianDpEvent(spec.noise_multiplier))
    accountant.compose(SelfComposedDpEvent(step, spec.steps))
    alone = accountant.get_epsilon(spec.budget.delta)
    accountant.compose(GaussianDpEvent(10.0))  # one release in which a unit has norm 1
    assert alone < accountant.get_epsilon(spec.budget.delta) == pytest.approx(3.0, rel=5e-3)
    without = plan(10_060, 512, [1, 2], 3.0).noise_multiplier
    assert 1.001 < spec.noise_multiplier / without < 1.01  # what the histogram costs


@pytest.mark.parametrize(("accountant", "sigma"), [("rdp", 2.0), ("pld", 20.0)])
def test_training_and_histogram_together_meet_the_target(accountant: Accountant, sigma: float) -> None:
    spec = plan(2000, 100, [1, 2], 3.0, accountant=accountant, histogram_noise_multiplier=sigma)
    together = compute_epsilon(spec.mechanisms(), spec.budget.delta, accountant)
    assert 2.98 < together <= 3.0
    assert spec.noise_multiplier > plan(2000, 100, [1, 2], 3.0, accountant=accountant).noise_multiplier


def test_a_histogram_that_costs_the_whole_target_is_refused() -> None:
    with pytest.raises(CalibrationError, match="target"):
        plan(2000, 100, 1, 1.0, accountant="rdp", histogram_noise_multiplier=0.5)
    with pytest.raises(CalibrationError, match="histogram_noise_multiplier is -1"):
        plan(2000, 100, 1, 1.0, accountant="rdp", histogram_noise_multiplier=-1.0)


def test_the_ledger_takes_one_histogram_beside_the_training_and_no_second_one(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    spec = plan(2000, 100, 1, 1.5, delta=1e-5, accountant="rdp", histogram_noise_multiplier=6.0)
    fit = ledger.open(scope="labels", stage="labels", spec=spec, planned_steps=20, data_fingerprint="f00d")
    terms = PrivacyArguments(1.5, delta=1e-5, accountant="rdp", histogram_noise_multiplier=6.0)
    own = terms.plan_release(NoisyHistogram.kind, 2000, "utterance", terms.histogram_noise(2000))
    name = declare(ledger, "labels", "histogram", own, "f00d")
    for _ in range(20):
        ledger.spend(fit)
    ledger.spend(name)
    assert 1.4 < ledger.epsilon("labels") <= 1.5
    with pytest.raises(BudgetExceededError):
        ledger.spend(name)


def test_a_caveat_is_kept_and_a_voiding_one_takes_epsilon_away(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spec = plan(2000, 100, 1, 3.0, accountant="rdp")
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for scope in ("labels", "two_stage"):
        ledger.spend(ledger.open(scope=scope, stage="fit", spec=spec, planned_steps=20, data_fingerprint="f00d"))
    ledger.caveat("two_stage", "rows were shuffled", voids=False)
    spent = Ledger(tmp_path / "ledger.jsonl").summary()
    assert spent["epsilon"] is not None
    assert "NOTE, two_stage: rows were shuffled." in spent["statement"]
    for _ in range(2):
        ledger.caveat("labels", "the exact histogram was released", voids=True)
    spent = Ledger(tmp_path / "ledger.jsonl").summary()
    assert spent["epsilon"] is None
    assert spent["scopes"]["labels"]["epsilon"] is None
    assert spent["scopes"]["labels"]["epsilon_of_mechanisms"] > 0
    assert spent["scopes"]["two_stage"]["epsilon"] > 0
    assert spent["statement"].count("NOT PRIVATE, labels: the exact histogram was released.") == 1
