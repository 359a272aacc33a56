"""Gaussian DP: σ of published tables, what a choice costs, and a budget that is never passed."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, ndtr, ndtri
from scipy.stats import chisquare

from doppel.privacy.accounting import CalibrationError, Mechanism, compute_epsilon, mu_of
from doppel.privacy.gdp import GaussianBudget, choose, epsilon_of_choice, mu_of_choice
from doppel.privacy.secret import Secret

#: N of OpenReview, PubMed and Yelp, and σ of ten releases at ε = 1, 2 and 4.
TABLE = {8_396: (11.60, 6.22, 3.38), 75_316: (13.26, 7.01, 3.75), 1_939_290: (15.40, 8.03, 4.24)}


@pytest.mark.parametrize("num_units", TABLE)
def test_sigma_agrees_with_the_published_table(num_units: int) -> None:
    delta = 1 / (num_units * math.log(num_units))
    found = [math.sqrt(10) / mu_of(epsilon, delta) for epsilon in (1, 2, 4)]
    assert found == pytest.approx(TABLE[num_units], abs=0.0101)


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 4.0, 20.0])
def test_mu_is_the_one_that_dp_accounting_finds_and_keeps_the_promise(epsilon: float) -> None:
    mu = mu_of(epsilon, 1e-5)
    accountant = PLDAccountant()
    accountant.compose(GaussianDpEvent(1 / mu))
    assert accountant.get_epsilon(1e-5) == pytest.approx(epsilon, rel=1e-3)
    delta = ndtr(-epsilon / mu + mu / 2) - math.exp(epsilon) * ndtr(-epsilon / mu - mu / 2)  # Dong, Roth, Su: 2.13
    assert delta == pytest.approx(1e-5, rel=1e-6) and delta <= 1e-5


@pytest.mark.parametrize("delta", [1e-4, 1e-7, 1e-9])
@pytest.mark.parametrize("epsilon", [0.05, 1.0, 8.0, 50.0])
def test_a_ledger_admits_releases_that_cost_exactly_the_target(epsilon: float, delta: float) -> None:
    mu = mu_of(epsilon, delta)
    for steps in (1, 10):
        found = compute_epsilon([Mechanism(1.0, math.sqrt(steps) / mu, steps)], delta)
        assert epsilon * (1 - 1e-6) < found <= epsilon


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 1e-5), (-1.0, 1e-5), (1.0, 0.0), (1.0, 1.0), (math.inf, 1e-5)])
def test_terms_that_promise_nothing_are_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(CalibrationError, match="epsilon"):
        mu_of(epsilon, delta)


@given(
    moves=st.lists(st.tuples(st.floats(-20, 20), st.floats(-1, 1)), min_size=2, max_size=12),
    mu=st.floats(0.01, 4.0),
)
def test_a_choice_is_at_least_as_private_as_its_gaussian(moves: list[tuple[float, float]], mu: float) -> None:
    """Every test between neighbours errs at least as often as between N(0, 1) and N(μ, 1)."""
    scores, moved = np.array(moves).T
    epsilon = epsilon_of_choice(mu)
    first, second = softmax(epsilon * scores / 2), softmax(epsilon * (scores + moved) / 2)
    for p, q in ((first, second), (second, first)):
        order = np.argsort(-p / np.maximum(q, 1e-300))
        false_alarms, misses = np.minimum(np.cumsum(q[order]), 1), 1 - np.cumsum(p[order])
        for alpha, beta in zip(false_alarms[:-1], misses[:-1], strict=True):
            assert beta >= ndtr(ndtri(1 - alpha) - mu) - 1e-9


def test_no_two_outcomes_of_bounded_range_are_farther_apart_and_two_are_as_far() -> None:
    logits = np.linspace(-12, 8, 20_001)
    for epsilon in (0.05, 0.5, 1.0, 2.0, 4.0):
        apart = ndtri(expit(logits + epsilon)) - ndtri(expit(logits))
        assert apart.max() == pytest.approx(mu_of_choice(epsilon), rel=1e-6)
        assert epsilon_of_choice(mu_of_choice(epsilon)) == pytest.approx(epsilon, rel=1e-9)


def test_the_maximum_of_scores_with_gaussian_noise_loses_more_the_more_scores_there_are() -> None:
    """Why a choice is no argmax of Gaussians: no μ that is free of their number bounds it."""
    x = np.linspace(-12, 14, 20_001)

    def mu(num: int, move: float = 0.5) -> float:
        """Half of the scores rise by `move` and the others fall: which half has the maximum?"""
        rises = ndtr(x - move) ** num
        return float(ndtri(np.sum(np.diff(rises) * (ndtr(x + move) ** num)[:-1])))

    assert mu(1) == pytest.approx(math.sqrt(2) * 0.5, rel=0.01)
    assert 2.5 * mu(1) < mu(1_000) < mu(100_000)


def test_places_are_drawn_with_the_probabilities_of_the_exponential_mechanism() -> None:
    scores = [0, 300, 500, 1000]
    with pytest.warns(UserWarning, match="NOT PRIVATE"):
        stream = Secret(7).stream("test")
    drawn = Counter(choose(stream, scores, 100, 0.4) for _ in range(20_000))
    wanted = softmax(0.4 * np.array(scores) / 200)
    assert chisquare([drawn[place] for place in range(4)], 20_000 * wanted).pvalue > 1e-3


def test_releases_add_up_to_mu_and_none_goes_beyond() -> None:
    budget = GaussianBudget(2.0)
    spent = [budget.spend(square) for square in (1.0, 0.5, 2.0)]
    assert spent == pytest.approx([1.0, math.sqrt(0.5), math.sqrt(2.0)])
    with pytest.raises(CalibrationError, match="left"):
        budget.spend(0.6)
    spent.append(budget.spend(budget.remaining))
    assert sum(mu * mu for mu in spent) == pytest.approx(4.0) and budget.remaining == 0.0
    with pytest.raises(CalibrationError):
        budget.spend(1e-9)


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()
