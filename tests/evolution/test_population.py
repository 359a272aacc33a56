"""Which candidates go on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doppel.evolution.candidates import Candidate, Prompt, distinct, fingerprint
from doppel.evolution.population import choose, largest_remainder, spread


@given(st.lists(st.floats(-5, 1e6), min_size=1, max_size=20), st.integers(0, 500))
def test_the_largest_remainders_round_to_the_whole(shares: list[float], total: int) -> None:
    found = largest_remainder(shares, total)
    positive = [max(0.0, share) for share in shares]
    assert sum(found) == total
    if any(positive):
        exact = [share / sum(positive) * total for share in positive]
        assert all(abs(n - wanted) < 1 + 1e-6 for n, wanted in zip(found, exact, strict=True))
    else:
        assert max(found) - min(found) <= 1


def test_a_small_label_is_not_lost_where_its_remainder_is_the_largest() -> None:
    assert largest_remainder([70.4, 28.9, 0.7], 100) == [70, 29, 1]


def test_rank_takes_those_with_most_votes() -> None:
    assert choose([1.0, 9.0, -2.0, 9.5], 2) == [3, 1]
    assert choose([1.0, 2.0], 5) == [1, 0, 1, 0, 1], "where there are fewer, some are taken again"


def test_clusters_get_their_shares_and_the_nearest_stand_for_them() -> None:
    assert spread([3.0, 1.0, -4.0], [[5, 2], [7], [1]], 4) == [5, 2, 5, 7]


def test_copies_are_one_candidate_and_the_fingerprint_tells_pools_apart() -> None:
    one, two = Candidate("a", Prompt("1", "x")), Candidate("a", Prompt("2", "y"))
    assert distinct([one, two, Candidate("a", Prompt("3", "x"))]) == [one, two]
    assert len({fingerprint(pool) for pool in ([one], [two], [one, two], [two, one])}) == 4
    assert fingerprint([one]) == fingerprint([Candidate("a", Prompt("other", "x"))])


@pytest.mark.parametrize("total", [0, 1, 7])
def test_equal_shares_are_spread_evenly(total: int) -> None:
    assert max(largest_remainder([1, 1, 1], total)) - min(largest_remainder([1, 1, 1], total)) <= 1
