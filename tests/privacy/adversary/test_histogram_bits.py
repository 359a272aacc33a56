"""The attacker looks at the last bits of a released histogram, which a float's rounding ties to the count below it.

Sums and noise are whole numbers of one grid, so every released number can come from every data set.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from doppel.privacy.histogram import GRID, add_noise, discrete_gaussian, unit_sums
from doppel.privacy.secret import Secret

pytestmark = pytest.mark.filterwarnings("ignore:NOT PRIVATE")


def last_bits(count: float) -> Counter[int]:
    """Last three bits of a bin that holds ``count``, over many releases, in units of the grid."""
    released = add_noise({str(i): count for i in range(2000)}, 2.0, seed=1)
    assert all(value * GRID == int(value * GRID) for value in released.values()), "off the grid"
    return Counter(int(value * GRID) % 8 for value in released.values())


def test_last_bits_are_those_of_noise_whatever_was_counted() -> None:
    for count in (0.0, 1.0, 1000.0):
        found = last_bits(count)
        assert all(found[bits] > 2000 / 8 - 5 * math.sqrt(2000 / 8) for bits in range(8))


def test_a_unit_weighs_at_most_one_in_whole_numbers() -> None:
    """Vectors whose rounded norm is a little above 1 in floating point."""
    generator = np.random.default_rng(0)
    for size in (2, 3, 7):
        for _ in range(200):
            vector = dict(zip("abcdefg"[:size], generator.normal(size=size).tolist(), strict=True))
            sums = unit_sums([("u", vector), ("u", vector)], "abcdefg")
            whole = [round(value * GRID) for value in sums.values()]
            assert sum(n * n for n in whole) <= GRID * GRID


def test_the_discrete_gaussian_has_its_probabilities() -> None:
    """At a standard deviation of 2 grid points, where it is far from the continuous one."""
    stream, num = Secret(3).stream("test"), 6000
    found = Counter(discrete_gaussian(stream, 2) for _ in range(num))
    total = sum(math.exp(-k * k / 8) for k in range(-60, 61))
    for k in range(-6, 7):
        expected = math.exp(-k * k / 8) / total
        assert abs(found[k] / num - expected) < 4.5 * math.sqrt(expected / num)
