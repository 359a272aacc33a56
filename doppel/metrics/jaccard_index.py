"""Exact search for near-duplicate texts by Jaccard similarity of their shingle sets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import CountVectorizer

_SLACK = 1e-9  # against 0.8 * 15 = 12.000000000000002 and the like
_BATCH = 64


def words(text: str) -> frozenset[str]:
    """The set of words of a normalised text."""
    return frozenset(text.split())


def trigrams(text: str) -> frozenset[str]:
    """The set of character trigrams of a normalised text, its ends marked by a space."""
    padded = f" {text} "
    return frozenset(padded[i : i + 3] for i in range(len(padded) - 2))


class JaccardIndex:
    """Finds out whether some indexed text has Jaccard similarity ≥ threshold with a query. No false answers.

    The sizes of all intersections of a batch of queries with the indexed texts are one product of sparse 0/1 matrices;
    only pairs that share a shingle are in it.
    """

    def __init__(self, texts: Iterable[str], shingle: Callable[[str], frozenset[str]], threshold: float = 0.8) -> None:
        """Build the index.

        Args:
            texts: texts to search among; repeats are dropped.
            shingle: turns a text into its set.
            threshold: least similarity of a match, in (0, 1].
        """
        self.shingle = shingle
        self.threshold = threshold
        self._vectorizer = CountVectorizer(analyzer=shingle, dtype=np.int32)
        # the last text is no part of the index: a vocabulary must not be empty
        indexed: csr_matrix = self._vectorizer.fit_transform([*sorted(set(texts)), "some words"])[:-1]
        self._sizes = np.diff(indexed.indptr)
        self._shingles = indexed.T.tocsr()

    def have_matches(self, texts: Sequence[str]) -> list[bool]:
        """For each text, whether an indexed one is at least ``threshold`` similar (an empty set matches none)."""
        found = np.zeros(len(texts), dtype=bool)
        for start in range(0, len(texts), _BATCH):
            batch = texts[start : start + _BATCH]
            sizes = np.array([len(self.shingle(text)) for text in batch])
            shared = (self._vectorizer.transform(batch) @ self._shingles).tocoo()
            union = sizes[shared.row] + self._sizes[shared.col] - shared.data
            is_match = shared.data >= self.threshold * union - _SLACK
            found[start + shared.row[is_match]] = True
        return found.tolist()
