"""The ε that is read off a line above divergences, and why it is an estimate and no guarantee."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from doppel.errors import UserError
from doppel.redaction.divergence import Pair
from studies.redaction.hull import BANNER, best_line

DELTA = 1e-5


@given(st.lists(st.floats(0, 20), min_size=2, max_size=12), st.sampled_from([1e-9, 1e-5, 0.1]))
def test_the_line_lies_above_and_no_other_has_a_smaller_epsilon(values: list[float], delta: float) -> None:
    orders = np.arange(1, len(values) + 1, dtype=float)
    line = best_line(dict(zip(orders, values, strict=True)), delta)
    assert (line.xi + line.rho * orders >= np.array(values) - 1e-9).all() and line.rho >= 0
    risen = np.maximum.accumulate(values)
    for slope in np.linspace(0, 25, 101):
        above = float((risen - slope * orders).max())
        assert line.epsilon_estimate <= above + slope + 2 * math.sqrt(slope * math.log(1 / delta)) + 1e-9


def test_a_straight_divergence_is_its_own_line_and_equal_sets_have_no_epsilon() -> None:
    line = best_line({order: 0.5 * order for order in (1.0, 2.0, 4.0, 64.0)}, DELTA)
    assert (line.xi, line.rho) == pytest.approx((0, 0.5))
    assert line.epsilon_estimate == pytest.approx(0.5 + 2 * math.sqrt(0.5 * math.log(1 / DELTA)))
    assert best_line({1.0: 0.0, 2.0: 0.0}, DELTA).epsilon_estimate == 0


def test_the_plateau_is_of_the_estimator_and_makes_epsilon_too_small() -> None:
    """A unit shift of normal distributions has D_α = α/2 and no plateau; the estimate by neighbours flattens."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 2000, 2)) + np.array([[[0.0, 0]], [[1.0, 0]]])
    pair = Pair(a, b, k=130)
    orders = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]
    found = {order: max(each.divergence() for each in pair.divergences(order)) for order in orders}
    assert found[64] < 3 and found[64] - found[32] < 0.2 * (found[4] - found[2]) * 16  # the truth: 32, and 16 times
    truth = best_line({order: order / 2 for order in orders}, DELTA)
    assert best_line(found, DELTA).epsilon_estimate < 0.6 * truth.epsilon_estimate
    assert "estimate" in BANNER and "no differential privacy guarantee" in BANNER and "too small" in BANNER


def test_what_is_no_probability_or_no_line_is_refused() -> None:
    with pytest.raises(UserError, match="delta"):
        best_line({1.0: 0.0, 2.0: 1.0}, 1.0)
    with pytest.raises(UserError, match="two orders"):
        best_line({1.0: 0.0}, DELTA)
