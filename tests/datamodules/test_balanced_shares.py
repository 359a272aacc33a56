"""Ranks compute parts of one batch, about as large as each other."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from datamodules.batches.shares import share


def shares(units: list[int], costs: list[int], world_size: int) -> list[list[int]]:
    return [share(units, np.array(costs, dtype=np.int64), rank, world_size) for rank in range(world_size)]


def padded(part: list[int], costs: list[int]) -> int:
    return len(part) * max((costs[unit] for unit in part), default=0)


@given(st.lists(st.integers(1, 200), max_size=60), st.integers(1, 9), st.data())
def test_shares_are_disjoint_and_cover_the_batch(costs: list[int], world_size: int, data: st.DataObject) -> None:
    chosen = [unit for unit in range(len(costs)) if data.draw(st.booleans())]
    parts = shares(chosen, costs, world_size)
    assert sorted(unit for part in parts for unit in part) == chosen
    assert all(min(costs[u] for u in a) >= max(costs[u] for u in b) for a, b in itertools.pairwise(filter(None, parts)))


@given(st.lists(st.integers(1, 30), min_size=1, max_size=9), st.integers(1, 4))
def test_no_cut_into_runs_has_a_cheaper_dearest_share(costs: list[int], world_size: int) -> None:
    parts = shares(list(range(len(costs))), costs, world_size)
    ordered = sorted(range(len(costs)), key=lambda unit: -costs[unit])
    best = min(
        max(padded(ordered[a:b], costs) for a, b in itertools.pairwise((0, *ends, len(costs))))
        for ends in itertools.combinations_with_replacement(range(len(costs) + 1), world_size - 1)
    )
    assert max(padded(part, costs) for part in parts) == best


def test_the_order_in_which_units_were_drawn_does_not_matter() -> None:
    costs = [5, 7, 1, 9, 8, 2]
    assert shares([4, 0, 5, 2, 1, 3], costs, 3) == shares(list(range(6)), costs, 3) == [[3], [4, 1], [0, 5, 2]]


def test_more_ranks_than_units_leave_some_without() -> None:
    assert shares([0, 1], [3, 3], 4) == [[0], [1], [], []]
    assert shares([], [3, 3], 2) == [[], []]
