"""Figures of one set of texts or trees: repetition, length, validity; nan for an empty set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from doppel.lispress import is_valid

_NAN = float("nan")


def distinct(texts: Sequence[str]) -> float:
    """Return the number of distinct texts over the number of texts, in (0, 1]."""
    return len(set(texts)) / len(texts) if texts else _NAN


def commonest(texts: Sequence[str]) -> float:
    """Return the commonest text's occurrences over the number of texts, in (0, 1].

    A value far above the reference's says that the samples repeat one text: a model that falls back on its mode.
    """
    return max(Counter(texts).values()) / len(texts) if texts else _NAN


def mean_words(utterances: Sequence[str]) -> float:
    """Return the mean number of words, between blanks, an utterance."""
    return sum(len(utterance.split()) for utterance in utterances) / len(utterances) if utterances else _NAN


def valid_share(trees: Sequence[str | None]) -> float:
    """Return the share of trees that are valid Lispress, in [0, 1]; None is no tree, and not counted."""
    present = [tree for tree in trees if tree is not None]
    return sum(map(is_valid, present)) / len(present) if present else _NAN
