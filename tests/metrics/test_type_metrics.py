"""Overlap, χ², top-k, validity, distinctness and length: values worked out by hand, and invariances."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doppel.metrics import (
    ChiSquare,
    Commonest,
    Distinct,
    FunctionOverlap,
    MeanWords,
    TopKOverlap,
    ValidTrees,
    WordOverlap,
)
from doppel.metrics.function_types import chi_square_distance, count_function_types, top_k

COUNTS = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 9), min_size=1).map(Counter)


def test_word_overlap_keeps_case_and_punctuation() -> None:
    metric = WordOverlap()
    metric.update(["set  a meeting", "Set it"], ["Set a meeting.", "a call"])
    # reference types: Set, a, meeting., call; the samples show Set and a
    assert metric.compute().item() == pytest.approx(2 / 4)


def test_function_metrics_leave_invalid_and_absent_trees_out() -> None:
    reference = ["(Yield (Execute (Today)))", "(Yield (Now))"]
    synthetic = ["(Yield (Today))", "(Now (", None]
    overlap, valid = FunctionOverlap(), ValidTrees()
    overlap.update(synthetic, reference)
    valid.update(synthetic)
    assert overlap.compute().item() == pytest.approx(2 / 4)  # Yield, Today of Yield, Execute, Today, Now
    assert valid.compute().item() == pytest.approx(1 / 2)


@pytest.mark.parametrize(("counting", "expected"), [("node_labels", 1 / 2), ("call_heads", 1.0)])
def test_counting_decides_whether_type_arguments_count(counting: str, expected: float) -> None:
    metric = FunctionOverlap(counting=counting)  # type: ignore[arg-type]
    metric.update(["(^(Event) Find)"], ["(^(Date) Find)"])
    if counting == "call_heads":
        assert metric.compute().item() == expected
    else:
        assert metric.compute().item() < 1.0


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
    assert count_function_types(["(And (Now) (Now))", "(And", None], "node_labels") == Counter(And=1, Now=2)


def test_top_k_breaks_ties_by_name_whatever_the_input_order() -> None:
    names = list("dcbaefgh")
    sets = set()
    for seed in range(5):
        random.Random(seed).shuffle(names)
        sets.add(frozenset(top_k(Counter(names + ["z", "z"]), 3)))
    assert sets == {frozenset("zab")}


def test_top_k_overlap_divides_by_k() -> None:
    metric = TopKOverlap(k=10)
    metric.update(["(A (B))"], ["(A (C))"])
    assert metric.compute().item() == pytest.approx(1 / 10)
    with pytest.raises(ValueError, match="k=0"):
        TopKOverlap(k=0)


def test_distinct_commonest_and_mean_words() -> None:
    distinct, commonest, mean_words = Distinct(), Commonest(), MeanWords()
    assert math.isnan(commonest.compute().item())
    commonest.reset()
    for batch in (["yes", "yes", "set an alarm"], ["yes", "no thanks"]):
        distinct.update(batch)
        commonest.update(batch)
        mean_words.update(batch)
    assert distinct.compute().item() == pytest.approx(3 / 5)
    assert commonest.compute().item() == pytest.approx(3 / 5)  # "yes", over both updates
    assert mean_words.compute().item() == pytest.approx(8 / 5)


@given(st.lists(st.sampled_from(["(A)", "(B (A))", "(C", "(D (B) (A))"]), min_size=2), st.integers(0, 10))
def test_updates_in_batches_equal_one_update(trees: list[str], cut: int) -> None:
    for make in (FunctionOverlap, ChiSquare, lambda: TopKOverlap(2)):
        whole, parts = make(), make()
        whole.update(trees, ["(A (B))"])
        parts.update(trees[:cut], ["(A (B))"])
        parts.update(synthetic=trees[cut:])
        assert whole.compute().item() == pytest.approx(parts.compute().item(), nan_ok=True)


def test_states_hold_text_and_are_not_saved() -> None:
    metric = WordOverlap()
    metric.update(["secret words"], ["more of them"])
    assert metric.state_dict() == {}
