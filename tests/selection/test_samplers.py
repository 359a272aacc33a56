"""Samplers: frequencies against the formula, and equal rows for one seed."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from doppel.selection import uat, uniform

Sampler = Callable[[NDArray[np.integer], int, int], NDArray[np.int64]]


def rows_of(counts: list[int]) -> NDArray[np.int64]:
    """Templates of the rows of a pool with so many rows of each, the rarest last."""
    return np.repeat(np.arange(len(counts)), counts)[::-1]


@pytest.mark.parametrize("fixed_weights", [False, True])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_uat_draws_its_first_two_templates_as_the_formula_says(alpha: float, fixed_weights: bool) -> None:
    rows, num = rows_of([1, 4, 15]), 6000
    drawn = [rows[uat(rows, 2, seed, alpha, fixed_weights)] for seed in range(num)]
    counts = np.bincount(rows)
    share = counts / counts.sum()
    chance = np.zeros((3, 3))
    for first, second in itertools.product(range(3), repeat=2):
        left = counts - np.eye(3, dtype=int)[first]
        row = share ** (alpha - 1)
        # Equation 1: templates that have rows left; or rows with the weights they had at the start
        weight = row * left if fixed_weights else share**alpha * (left > 0)
        start = row * counts if fixed_weights else share**alpha
        chance[first, second] = start[first] / start.sum() * weight[second] / weight.sum()
    seen = np.zeros((3, 3))
    np.add.at(seen, tuple(np.array(drawn).T), 1 / num)
    assert chance.sum() == pytest.approx(1)
    assert np.abs(seen - chance).max() < 4 * np.sqrt(0.25 / num)


def test_uat_draws_the_rows_of_a_template_uniformly() -> None:
    rows = rows_of([2, 4])
    first = [int(uat(rows, 1, seed)[0]) for seed in range(4000)]
    expected = 0.5 / np.bincount(rows)[rows]
    assert np.abs(np.bincount(first, minlength=6) / 4000 - expected).max() < 0.04


@pytest.mark.parametrize("sampler", [uat, uniform])
def test_one_seed_one_sample_and_fewer_rows_are_the_first_of_more(sampler: Sampler) -> None:
    pool = rows_of([5, 3, 9, 1, 2, 4])
    rows = sampler(pool, 24, 7)
    assert sorted(rows) == list(range(24))
    assert list(sampler(pool, 10, 7)) == list(rows[:10])
    assert any(list(sampler(pool, 10, seed)) != list(rows[:10]) for seed in range(3))


@pytest.mark.parametrize("num", [0, 7])
@pytest.mark.parametrize("sampler", [uat, uniform])
def test_what_the_pool_does_not_have_is_refused(sampler: Sampler, num: int) -> None:
    with pytest.raises(ValueError, match=f"{num} .*6"):
        sampler(rows_of([1, 2, 3]), num, 1)


def test_an_alpha_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="alpha is 1.5"):
        uat(rows_of([3]), 1, 1, 1.5)
