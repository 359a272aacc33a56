"""Copies of private utterances: the index gives exact answers, folding and length rules hold."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doppel.metrics import copies
from doppel.metrics.copies import CopyIndex, JaccardIndex, copy_shares, trigrams, words

WORDS = st.lists(st.sampled_from(list("abcdefg")), max_size=9).map(" ".join)


@given(
    st.lists(WORDS, max_size=12),
    WORDS,
    st.sampled_from([0.5, 0.6, 0.8, 1.0]),
    st.sampled_from([words, trigrams]),
)
def test_the_index_agrees_with_comparing_every_pair(texts: list[str], query: str, threshold: float, shingle) -> None:
    wanted = shingle(query)
    brute = any(
        wanted and len(wanted & shingle(text)) >= threshold * len(wanted | shingle(text)) - 1e-9
        for text in texts
        if shingle(text)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copies, "_PART", 3)
        index = JaccardIndex(texts, shingle, threshold)
        found = index.have_matches(["", query, *texts])
    assert found == [False, brute, *(bool(shingle(text)) for text in texts)]


PRIVATE = [
    "Yes.",
    "What's on my calendar for next Tuesday afternoon?",
    "Book lunch with Ann at Blue Door on May 3rd",
]


@pytest.mark.parametrize(
    ("utterance", "exact", "near"),
    [
        ("  whats ON my calendar, for next tuesday afternoon", 1, 1),
        ("what's on my calendar for next tuesday afternoon now", 0, 1),  # one word more
        ("for next tuesday afternoon what's on my calendar", 0, 1),  # order changed
        ("what's on my calendar for next tuesday afternoom", 0, 1),  # a letter changed
        ("what's the weather for next friday", 0, 0),
        ("?!", 0, 0),
    ],
)
def test_exact_and_near_copies(utterance: str, exact: int, near: int) -> None:
    values = copy_shares([utterance], CopyIndex(PRIVATE))
    assert (values["exact_copies"], values["near_copies"]) == (exact, near)


def test_texts_without_letters_are_copies_of_equal_ones_alone() -> None:
    index = CopyIndex(["!!!", "🙂", "", "x y"])
    assert [index.is_exact(text) for text in ("🙂", " 🙂 ", "!!!", "...", "", "X, y")] == [True] * 3 + [
        False,
        False,
        True,
    ]
    assert index.are_near(["🙂", "...", ""]) == [True, False, False]


def test_short_utterances_do_not_enter_the_long_shares() -> None:
    texts = ["yes", "Yes!", "book lunch with ann at blue door on may 3rd", "tell me a joke about private data"]
    assert copy_shares(texts, CopyIndex(PRIVATE), min_words=5) == {
        "exact_copies": 0.75,
        "near_copies": 0.75,
        "exact_copies_long": 0.5,
        "near_copies_long": 0.5,
        "num_long": 2,
    }
    assert math.isnan(copy_shares(["yes"], CopyIndex(PRIVATE))["near_copies_long"])
