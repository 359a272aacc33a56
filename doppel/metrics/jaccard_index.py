"""Exact search for near-duplicate texts by Jaccard similarity of their shingle sets."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

_SLACK = 1e-9  # against 0.8 * 15 = 12.000000000000002 and the like


def words(text: str) -> frozenset[str]:
    """The set of words of a normalised text."""
    return frozenset(text.split())


def trigrams(text: str) -> frozenset[str]:
    """The set of character trigrams of a normalised text, its ends marked by a space."""
    padded = f" {text} "
    return frozenset(padded[i : i + 3] for i in range(len(padded) - 2))


class JaccardIndex:
    """Finds out whether some indexed text has Jaccard similarity ≥ threshold with a query. No false answers.

    Prefix filtering (Chaudhuri, Ganti, Kaushik 2006; Bayardo, Ma, Srikant 2007): with shingles ordered from
    rare to frequent, two sets of similarity ≥ t share a shingle among the first ``n − ⌈t·n⌉ + 1`` of each.
    Only those are indexed, and sizes outside ``[t·n, n/t]`` are skipped, so few pairs are compared.
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
        self._texts = sorted(set(texts))
        self._frequency: Counter[str] = Counter()
        for text in self._texts:
            self._frequency.update(shingle(text))
        self._sizes: list[int] = []
        self._postings: defaultdict[str, list[int]] = defaultdict(list)
        for index, text in enumerate(self._texts):
            items = shingle(text)
            self._sizes.append(len(items))
            for item in self._prefix(items):
                self._postings[item].append(index)

    def _prefix(self, items: frozenset[str]) -> list[str]:
        length = len(items) - math.ceil(self.threshold * len(items) - _SLACK) + 1
        return sorted(items, key=lambda item: (self._frequency[item], item))[:length]

    def has_match(self, text: str) -> bool:
        """True where an indexed text is at least ``threshold`` similar (an empty set matches none)."""
        items = self.shingle(text)
        if not items:
            return False
        least, most = self.threshold * len(items) - _SLACK, len(items) / self.threshold + _SLACK
        seen: set[int] = set()
        for item in self._prefix(items):
            for index in self._postings.get(item, ()):
                if index in seen or not least <= self._sizes[index] <= most:
                    continue
                seen.add(index)
                shared = len(items & self.shingle(self._texts[index]))
                if shared >= self.threshold * (len(items) + self._sizes[index] - shared) - _SLACK:
                    return True
        return False
