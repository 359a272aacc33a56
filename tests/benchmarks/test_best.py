"""What is drawn beside what: pools follow private shares, and without shares they stay as they are."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.best import weights
from datamodules.reading.example import Example
from doppel.resampling import draw


def requests(parse: str, number: int) -> list[Example]:
    return [Example(f"{parse} {place}", parse, "") for place in range(number)]


@pytest.mark.parametrize(("shares", "expected"), [("none", 0.5), ("trees", 0.9)])
def test_a_third_of_a_pool_has_the_private_shares_of_functions(shares: str, expected: float) -> None:
    pool = requests("(Yield :output (Now))", 300) + requests("(Fence :output (Today))", 300)
    private = requests("(Yield :output (Now))", 9000) + requests("(Fence :output (Today))", 1000)
    found = weights(shares, pool, private, lambda: np.empty(0))
    drawn = draw(found, 200, seed=1)
    assert np.mean([place < 300 for place in drawn]) == pytest.approx(expected, abs=0.03)
