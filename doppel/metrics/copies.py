"""Share of synthetic utterances that repeat a private training utterance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import CountVectorizer
from tqdm import tqdm

from doppel.text.forms import normalise

_SLACK = 1e-9  # against 0.8 * 15 = 12.000000000000002 and the like
_BATCH, _PART = 64, 2**14  # queries, and indexed texts, that are compared at a time


def folded(text: str) -> str:
    """Return a text as copies are compared: normalised, or as it is where that leaves nothing, as of an emoji."""
    return normalise(text) or " ".join(text.split())


def words(text: str) -> frozenset[str]:
    """Return the set of words of a normalised text."""
    return frozenset(text.split())


def trigrams(text: str) -> frozenset[str]:
    """Return the set of character trigrams of a normalised text, its ends marked by a space."""
    padded = f" {text} "
    return frozenset(padded[i : i + 3] for i in range(len(padded) - 2))


class JaccardIndex:
    """Finds out whether some indexed text has Jaccard similarity ≥ threshold with a query. No false answers.

    The sizes of all intersections of a batch of queries with a part of the indexed texts are one product of sparse 0/1
    matrices; only pairs that share a shingle are in it. Texts lie by the sizes of their sets, and a part whose sizes
    are too unlike those of the queries is left out. Beside the index, memory does not grow with the texts.
    """

    def __init__(self, texts: Iterable[str], shingle: Callable[[str], frozenset[str]], threshold: float = 0.8) -> None:
        """Index texts by their sets; ``threshold`` is the least similarity of a match, in (0, 1]."""
        self.shingle = shingle
        self.threshold = threshold
        self._vectorizer = CountVectorizer(analyzer=shingle, dtype=np.int32)
        # the last text is no part of the index: a vocabulary must not be empty
        indexed: csr_matrix = self._vectorizer.fit_transform([*sorted(set(texts)), "some words"])[:-1]
        sizes = np.diff(indexed.indptr)
        order = np.argsort(sizes, kind="stable")
        parts = (order[start : start + _PART] for start in range(0, len(order), _PART))
        self._parts = [(indexed[part].T.tocsr(), sizes[part]) for part in parts]

    def have_matches(self, texts: Sequence[str]) -> list[bool]:
        """Check for each text whether an indexed one is at least ``threshold`` similar (an empty set never is)."""
        matches = np.zeros(len(texts), dtype=bool)
        sizes = np.array([len(self.shingle(text)) for text in texts])
        order = np.argsort(sizes, kind="stable")
        starts = range(0, len(texts), _BATCH)
        for start in tqdm(starts, desc="   copies", leave=False, dynamic_ncols=True, disable=None):
            batch = order[start : start + _BATCH]
            queries, own = self._vectorizer.transform([texts[place] for place in batch]), sizes[batch]
            for shingles, theirs in self._parts:
                if theirs[-1] < self.threshold * own[0] - _SLACK or self.threshold * theirs[0] > own[-1] + _SLACK:
                    continue
                shared = (queries @ shingles).tocoo()
                union = own[shared.row] + theirs[shared.col] - shared.data
                is_match = shared.data >= self.threshold * union - _SLACK
                matches[batch[shared.row[is_match]]] = True
        return matches.tolist()


class CopyIndex:
    """Answers whether an utterance is an exact or a near copy of one of the private utterances.

    * exact: equal after :func:`folded`.
    * near: exact, or Jaccard similarity ≥ 0.8 of the two *word sets* (order changed, one word of ten
      added) or of the two *character-trigram sets* (a letter or a short name changed in a long utterance).
    """

    def __init__(self, private: Iterable[str]) -> None:
        """Index the private utterances, which stay inside this object."""
        self._private = {folded(text) for text in private} - {""}

    @cached_property
    def _indices(self) -> tuple[JaccardIndex, JaccardIndex]:
        return JaccardIndex(self._private, words), JaccardIndex(self._private, trigrams)

    def is_exact(self, text: str) -> bool:
        """Return true where a private utterance equals this one after normalisation."""
        return folded(text) in self._private

    def are_near(self, texts: Sequence[str]) -> list[bool]:
        """Return for each text, true for exact copies and for near copies."""
        forms = [folded(text) for text in texts]
        matches = zip(*(index.have_matches(forms) for index in self._indices), strict=True)
        return [form in self._private or any(found) for form, found in zip(forms, matches, strict=True)]


def copy_shares(synthetic: Sequence[str], index: CopyIndex, min_words: int = 5) -> dict[str, float]:
    """Return shares of exact and near copies of private utterances among synthetic ones, in [0, 1].

    Short utterances ("yes") repeat by themselves, so both shares are also given among utterances of at least
    ``min_words`` words. The numbers compare with private data: they are *not* differentially private.

    Args:
        synthetic: utterances.
        index: over the private ones.
        min_words: from how many words an utterance counts as long.

    Returns:
        ``exact_copies``, ``near_copies`` (exact ones too), both ``_long``, and ``num_long``; nan of no utterance.
    """
    exact, near = [index.is_exact(text) for text in synthetic], index.are_near(synthetic)
    long = [len(normalise(text).split()) >= min_words for text in synthetic]

    def shares(rows: Sequence[bool]) -> list[float]:
        found = ([flag for flag, is_row in zip(flags, rows, strict=True) if is_row] for flags in (exact, near))
        return [sum(flags) / len(flags) if flags else float("nan") for flags in found]

    of_all, of_long = shares([True] * len(synthetic)), shares(long)
    return {
        "exact_copies": of_all[0],
        "near_copies": of_all[1],
        "exact_copies_long": of_long[0],
        "near_copies_long": of_long[1],
        "num_long": sum(long),
    }
