"""Overlap, χ², top-k, validity, distinctness and length: values worked out by hand, and invariances."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doppel.metrics.compare import function_metrics, word_overlap
from doppel.metrics.texts import commonest, distinct, mean_words, valid_share
from doppel.metrics.type_counts import chi_square_distance, count_function_types, top_k, top_k_overlap, type_overlap

COUNTS = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 9), min_size=1).map(Counter)


def test_word_overlap_keeps_case_and_punctuation() -> None:
    # reference types: Set, a, meeting., call; the samples show Set and a
    assert word_overlap(["set  a meeting", "Set it"], ["Set a meeting.", "a call"]) == pytest.approx(2 / 4)
    assert word_overlap(["yes"], []) is None


def test_function_metrics_leave_invalid_and_absent_trees_out() -> None:
    reference = ["(Yield (Execute (Today)))", "(Yield (Now))"]
    synthetic = ["(Yield (Today))", "(Now (", None]
    # Yield, Today of Yield, Execute, Today, Now
    assert function_metrics(synthetic, reference)["function_overlap"] == pytest.approx(2 / 4)
    assert valid_share(synthetic) == pytest.approx(1 / 2)


@pytest.mark.parametrize(("counting", "expected"), [("node_labels", False), ("call_heads", True)])
def test_counting_decides_whether_type_arguments_count(counting: str, expected: bool) -> None:
    first, second = (count_function_types([tree], counting) for tree in ("(^(Event) Find)", "(^(Date) Find)"))  # type: ignore[arg-type]
    assert (type_overlap(first, second) == 1) is expected


@given(COUNTS, COUNTS)
def test_chi_square_is_a_bounded_symmetric_distance(first: Counter[str], second: Counter[str]) -> None:
    distance = chi_square_distance(first, second)
    assert 0 <= distance <= 1 + 1e-12
    assert distance == pytest.approx(chi_square_distance(second, first))
    assert chi_square_distance(first, first) == 0
    tripled = Counter({name: 3 * count for name, count in second.items()})
    assert distance == pytest.approx(chi_square_distance(first, tripled))


def test_chi_square_by_hand() -> None:
    assert chi_square_distance(Counter(a=1, b=1), Counter(a=1)) == pytest.approx(0.5 * (0.25 / 1.5 + 0.25 / 0.5))
    assert chi_square_distance(Counter(a=1), Counter(b=1)) == 1
    assert math.isnan(chi_square_distance(Counter(), Counter(b=1)))


def test_every_occurrence_of_a_type_counts() -> None:
    assert count_function_types(["(And (Now) (Now))", "(And", None]) == Counter(And=1, Now=2)


def test_top_k_breaks_ties_by_name_whatever_the_input_order() -> None:
    names = list("dcbaefgh")
    sets = set()
    for seed in range(5):
        random.Random(seed).shuffle(names)
        sets.add(frozenset(top_k(Counter(names + ["z", "z"]), 3)))
    assert sets == {frozenset("zab")}


def test_top_k_overlap_divides_by_k() -> None:
    assert top_k_overlap(Counter("ab"), Counter("ac"), 10) == pytest.approx(1 / 10)
    assert math.isnan(top_k_overlap(Counter("ab"), Counter(), 10))


def test_distinct_commonest_and_mean_words() -> None:
    texts = ["yes", "yes", "set an alarm", "yes", "no thanks"]
    assert distinct(texts) == commonest(texts) == pytest.approx(3 / 5)
    assert mean_words(texts) == pytest.approx(8 / 5)
    assert all(math.isnan(metric([])) for metric in (distinct, commonest, mean_words, valid_share))
