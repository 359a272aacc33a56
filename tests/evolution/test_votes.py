"""Votes: what one unit can move, exactly; whom a text votes for."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doppel.evolution import votes
from doppel.evolution.votes import NearestNeighbourHistogram
from doppel.nearest import nearest, normalised, whole
from doppel.privacy.histogram import GRID, add_noise, unit_sums


def rows(seed: int, num: int, dimensions: int = 8) -> np.ndarray:
    """Unit vectors in float32, as a sentence encoder gives them."""
    vectors = np.random.default_rng(seed).normal(size=(num, dimensions)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def distance(one: dict[str, float], other: dict[str, float]) -> float:
    return math.sqrt(sum((one[name] - other[name]) ** 2 for name in one))


@settings(max_examples=80)
@given(
    seed=st.integers(0, 10**6),
    num_rows=st.integers(1, 12),
    new_rows=st.integers(1, 9),
    votes_each=st.integers(1, 7),
    by_label=st.booleans(),
    odd=st.sampled_from([0.0, 1e30, math.nan, math.inf, -1.0]),
)
def test_a_unit_more_moves_all_sums_by_at_most_one(
    seed: int, num_rows: int, new_rows: int, votes_each: int, by_label: bool, odd: float
) -> None:
    chance = np.random.default_rng(seed)
    vectors, candidates = rows(seed, num_rows + new_rows), rows(seed + 1, 6)
    vectors[num_rows] *= np.float32(odd)
    units = [f"u{chance.integers(0, 4)}" for _ in range(num_rows)] + ["new"] * new_rows
    labels = [str(chance.choice(["a", "b", "unknown"])) for _ in units] if by_label else None
    theirs = ["a", "b", "a", "b", "a", "a"]
    without = NearestNeighbourHistogram([vectors[:num_rows]], units[:num_rows], labels and labels[:num_rows])
    sums = without.sums(candidates, theirs, votes_each)
    more = NearestNeighbourHistogram([vectors[:1], vectors[1:]], units, labels).sums(candidates, theirs, votes_each)
    assert distance(sums, more) <= 1.0
    assert all((value * GRID).is_integer() for value in more.values())


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    num_rows=st.integers(1, 30),
    part=st.integers(1, 9),
    votes_each=st.integers(1, 7),
    by_label=st.booleans(),
)
def test_sums_are_those_of_whole_numbers_all_at_once(
    seed: int, num_rows: int, part: int, votes_each: int, by_label: bool
) -> None:
    """In parts, sorted by unit, in int32 and float64: equal to Python's integers, row by row as they came."""
    chance = np.random.default_rng(seed)
    vectors, candidates = rows(seed, num_rows), np.repeat(rows(seed + 1, 6), 2, axis=0)
    vectors[:, 0] += chance.choice([0.0, 0.0, math.nan], num_rows)
    units = [f"u{chance.integers(0, 9)}" for _ in range(num_rows)]
    labels = [str(chance.choice(["a", "b", "unknown"])) for _ in units] if by_label else [None] * num_rows
    theirs: list[str | None] = [("a", "b", "c")[i % 3] if by_label else None for i in range(12)]
    public = [[int(entry) for entry in row] for row in normalised(candidates)]

    def ballot(vector: np.ndarray, label: str | None) -> dict[str, float]:
        if not np.isfinite(vector).all():
            return {}
        own = [int(entry) for entry in whole(vector[None])[0]]
        scores = [sum(map(int.__mul__, own, other)) for other in public]
        places = sorted((i for i in range(12) if theirs[i] == label), key=lambda i: -scores[i])[:votes_each]
        return {str(place): 1 / math.sqrt(votes_each) for place in places}

    expected = unit_sums(zip(units, map(ballot, vectors, labels), strict=True), map(str, range(12)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(votes, "_PART", part)
        histogram = NearestNeighbourHistogram(np.array_split(vectors, 3), units, labels if by_label else None)
        assert histogram.sums(candidates, theirs, votes_each) == expected


def test_a_unit_of_one_row_reaches_the_bound_and_no_further() -> None:
    """The worst case is reached: more noise than σ√k votes is not needed."""
    candidates = rows(3, 50)
    for k in (1, 2, 5):
        before = NearestNeighbourHistogram([rows(1, 20)], [str(i) for i in range(20)])
        after = NearestNeighbourHistogram([rows(1, 20), rows(9, 1)], [str(i) for i in range(21)])
        moved = distance(before.sums(candidates, votes_each=k), after.sums(candidates, votes_each=k))
        assert 1 - 1e-6 < moved <= 1.0


def test_a_ballot_is_the_same_to_the_last_bit_whoever_is_beside_it() -> None:
    """Candidates that are all but equal: in float32, BLAS sums a row otherwise in a larger matrix."""
    generator = np.random.default_rng(0)
    near = rows(5, 1, 384) + generator.normal(size=(200, 384)).astype(np.float32) * 1e-7
    vectors = rows(6, 97, 384)
    own, theirs = whole(vectors), normalised(near)
    together = list(nearest(own, theirs, 3))
    alone = [next(iter(nearest(own[i : i + 1], theirs, 3))) for i in range(97)]
    assert together == alone
    order = generator.permutation(384)
    assert together == list(nearest(own[:, order], theirs[:, order], 3)), "sums in another order are the same"


def test_each_text_votes_for_the_nearest() -> None:
    vectors, candidates = rows(1, 40), rows(2, 30) * np.linspace(0.3, 1, 30, dtype=np.float32)[:, None]
    found = list(nearest(whole(vectors), normalised(candidates), 4))
    for vector, own in zip(vectors, found, strict=True):
        cosines = candidates @ vector / np.linalg.norm(candidates, axis=1)
        assert own == np.argsort(-cosines)[:4].tolist()
    assert [own[:1] for own in found] == list(nearest(whole(vectors), normalised(candidates), 1))
    equal = np.repeat(candidates[:1], 3, axis=0)
    assert list(nearest(whole(vectors[:1]), normalised(equal), 2)) == [[0, 1]]


def test_a_text_votes_among_the_candidates_of_its_label() -> None:
    vectors = np.eye(3, dtype=np.float32)
    histogram = NearestNeighbourHistogram([vectors], ["1", "2", "3"], ["a", "b", "none of them"])
    sums = histogram.sums(vectors, ["b", "a", "b"])
    assert sums == {"0": 1.0, "1": 1.0, "2": 0.0}


def test_many_votes_of_few_candidates_are_no_error() -> None:
    assert sum(
        NearestNeighbourHistogram([rows(1, 3)], list("abc")).sums(rows(2, 2), votes_each=9).values()
    ) == pytest.approx(2.0, 1e-6)


def test_the_histogram_is_not_shown_copied_or_written() -> None:
    histogram = NearestNeighbourHistogram([rows(1, 3)], ["ann", "bob", "cem"], ["x", None, "y"])
    assert "ann" not in repr(histogram) and not hasattr(histogram, "__dict__")
    for write in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="not written"):
            write(histogram)


def test_what_cannot_be_exact_is_refused() -> None:
    with pytest.raises(ValueError, match="2048"):
        NearestNeighbourHistogram([np.zeros((1, 4096))], ["a"])


def test_noise_is_on_every_candidate_also_without_a_vote() -> None:
    """σ of the sums, so σ√k of the votes."""
    sums = NearestNeighbourHistogram([rows(1, 4)], list("abcd")).sums(rows(2, 3000), votes_each=4)
    with pytest.warns(UserWarning, match="NOT PRIVATE"):
        noisy = add_noise(sums, 5.0, seed=1)
    gaps = np.array([noisy[name] - sums[name] for name in sums])
    assert len(np.unique(gaps)) > 2990 and 4.8 < gaps.std() < 5.2
