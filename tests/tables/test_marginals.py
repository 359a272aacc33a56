"""What one unit can move of a table's counts and errors, in the worst case, and how their noise is spread."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doppel.privacy.histogram import GRID
from doppel.privacy.secret import Secret
from doppel.tables.marginals import Table, pairs, total_variation

SIZES = (2, 3, 2)
CLIQUES = [(0,), (1,), (2,), *pairs(3)]
ROWS = list(itertools.product(*map(range, SIZES)))


def table(rows: list[tuple[int, ...]], units: list[str] | None = None) -> Table:
    return Table.of_units(rows, units or [str(place) for place in range(len(rows))], SIZES)


@given(
    rows=st.lists(st.sampled_from(ROWS), max_size=6),
    estimate=st.lists(st.floats(-5, 5), min_size=6, max_size=6),
)
@settings(max_examples=50)
def test_one_row_moves_counts_and_errors_by_at_most_one_whichever_row_it_is(
    rows: list[tuple[int, ...]], estimate: list[float]
) -> None:
    """All one-row additions to a table, for all marginals: the largest move is 1, and is reached."""
    before = table(rows)
    for clique in CLIQUES:
        shape = [SIZES[place] for place in clique]
        guess = np.resize(np.array(estimate), shape)
        moves, errors = [], []
        for row in ROWS:
            after = table([*rows, row])
            moved = after.marginal(clique) - before.marginal(clique)
            assert np.abs(moved).sum() == GRID and (moved**2).sum() <= GRID**2
            moves.append(np.sqrt((moved**2).sum()))
            errors.append(after.error(clique, guess) - before.error(clique, guess))
        assert max(moves) == GRID
        assert max(map(abs, errors)) <= GRID


@given(
    rows=st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(ROWS)), max_size=8),
    of_one=st.lists(st.sampled_from(ROWS), min_size=1, max_size=7),
    estimate=st.lists(st.floats(-5, 5), min_size=6, max_size=6),
)
@settings(max_examples=100)
def test_a_unit_with_all_its_rows_moves_them_by_at_most_one(
    rows: list[tuple[str, tuple[int, ...]]], of_one: list[tuple[int, ...]], estimate: list[float]
) -> None:
    units, codes = [unit for unit, _ in rows], [row for _, row in rows]
    before, after = table(codes, units), table([*codes, *of_one], [*units, *("new" for _ in of_one)])
    assert after.num_units == before.num_units + 1
    for clique in CLIQUES:
        moved = after.marginal(clique) - before.marginal(clique)
        assert (moved >= 0).all() and moved.sum() <= GRID and float((moved.astype(float) ** 2).sum()) <= GRID**2
        guess = np.resize(np.array(estimate), [SIZES[place] for place in clique])
        assert abs(after.error(clique, guess) - before.error(clique, guess)) <= GRID


def test_an_error_reaches_its_sensitivity_in_both_directions() -> None:
    """So a choice must pay for ±1: nothing of one direction alone can be claimed."""
    none, one = table([(0, 0, 0)]), table([(0, 0, 0), (1, 2, 1)])
    low, high = np.zeros((2, 3)), np.full((2, 3), 5.0)
    assert one.error((0, 1), low) - none.error((0, 1), low) == GRID
    assert one.error((0, 1), high) - none.error((0, 1), high) == -GRID


def test_counts_are_those_of_units() -> None:
    rows = [(0, 0, 0), (0, 1, 0), (1, 1, 1)]
    assert (table(rows).marginal((0,)) / GRID).tolist() == [2, 1]
    assert (table(rows, ["ann", "ann", "bob"]).marginal((0, 1)) / GRID).tolist() == [[0.5, 0.5, 0], [0, 1, 0]]


def test_a_marginal_is_counted_once_and_nobody_changes_it() -> None:
    counted = table([(0, 0, 0), (1, 1, 1)])
    counts = counted.marginal((0, 1))
    assert counted.marginal((0, 1)) is counts
    with pytest.raises(ValueError, match="read-only"):
        counts += 1


def test_noise_has_the_scale_of_mu_on_every_count_those_of_nobody_too() -> None:
    wide = Table(np.zeros((5, 2), dtype=np.int64), np.full(5, GRID), (100, 100), 5)
    with pytest.warns(UserWarning, match="NOT PRIVATE"):
        stream = Secret(3).stream("test")
    released = wide.measure((0, 1), 0.25, stream)
    noise = released.counts - wide.marginal((0, 1)) / GRID
    assert released.sigma == pytest.approx(4.0)
    assert abs(noise.std() / 4.0 - 1) < 0.03 and abs(noise.mean()) < 0.2
    assert abs(np.corrcoef(noise.ravel()[:-1], noise.ravel()[1:])[0, 1]) < 0.05


def test_total_variation_is_nought_for_equal_tables_and_one_for_disjoint_ones() -> None:
    ones, twos = np.zeros((4, 3), dtype=np.int64), np.ones((4, 3), dtype=np.int64)
    assert total_variation(ones, ones, SIZES) == 0.0
    assert total_variation(ones, twos, SIZES) == 1.0
