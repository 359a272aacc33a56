"""Samplers by entropy: greedy choices against a plain one, equal rows for one seed, an interrupted choice goes on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from doppel.selection import uat, uniform
from studies.structural_sampling.max_entropy import TIE, Gain, cmaxent
from studies.structural_sampling.pool import Pool

PROGRAMS = [
    "(F (A VALUE))",
    "(F (B VALUE))",
    "(G (A VALUE) (B VALUE))",
    "(F (A (C VALUE)))",
    "(H)",
    "(G (H) (A VALUE))",
]


def pool_of(counts: list[int]) -> Pool:
    """A pool with so many rows of each program, whose templates are the programs, in an order that mixes them."""
    rows = [program for program, count in zip(PROGRAMS, counts, strict=False) for _ in range(count)]
    return Pool.of(rows[:: 1 if len(rows) < 3 else -1])


def test_one_seed_one_sample_and_fewer_rows_are_the_first_of_more() -> None:
    pool = pool_of([5, 3, 9, 1, 2, 4])
    rows = cmaxent(pool, 24, 7)
    assert sorted(rows) == list(range(24))
    assert list(cmaxent(pool, 10, 7)) == list(rows[:10]) == list(cmaxent(pool_of([5, 3, 9, 1, 2, 4]), 10, 7))
    assert any(list(cmaxent(pool, 10, seed)) != list(rows[:10]) for seed in range(3))


@pytest.mark.parametrize("num", [0, 7])
def test_what_the_pool_does_not_have_is_refused(num: int) -> None:
    with pytest.raises(ValueError, match=f"{num} .*6"):
        cmaxent(pool_of([1, 2, 3]), num, 1)


def entropies_with(pool: Pool, counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """H(A) + H(C) of a sample and one more of each query, from nothing."""
    more = np.eye(len(counts), dtype=int)
    return np.array([sum(pool.structures.entropies(counts + one)) for one in more])


@settings(max_examples=40)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(0, 99), st.data())
def test_the_lazy_greedy_choice_is_the_plain_one(counts: list[int], seed: int, data: st.DataObject) -> None:
    pool = pool_of(counts)
    num = data.draw(st.integers(1, sum(counts)))
    taken, left = np.zeros(len(counts), dtype=int), pool.counts.copy()
    for row in cmaxent(pool, num, seed):
        query = pool.query_of_row[row]
        scores = entropies_with(pool, taken)
        assert left[query] > 0
        assert scores[query] >= scores[left > 0].max() - 2 * TIE
        taken[query] += 1
        left[query] -= 1


@settings(max_examples=20)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=30))
def test_a_gain_is_what_counting_anew_gives(choices: list[int]) -> None:
    pool = pool_of([1] * 6)
    gain, taken = Gain(pool.structures.compounds), np.zeros(6, dtype=int)
    for choice in choices:
        gain.add(choice)
        taken[choice] += 1
        anew = [pool.structures.entropies(taken + one)[1] for one in np.eye(6, dtype=int)]
        assert gain.entropy_with(slice(None)) == pytest.approx(anew, abs=1e-9)


def test_diverse_samples_have_more_entropy_and_more_templates_than_uniform_ones() -> None:
    pool = pool_of([300, 40, 3, 3, 3, 3])

    def judge(rows: NDArray[np.int64]) -> tuple[float, int]:
        counts = np.bincount(pool.query_of_row[rows], minlength=6)
        return sum(pool.structures.entropies(counts)), np.count_nonzero(counts)

    plain = judge(uniform(pool.template_of_row, 20, 1))
    for rows in (uat(pool.template_of_row, 20, 1), cmaxent(pool, 20, 1)):
        assert judge(rows) > plain
