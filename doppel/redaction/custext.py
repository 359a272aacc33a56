"""The exponential mechanism among a few words that stay together (Chen et al., 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from doppel.errors import UserError
from doppel.privacy.secret import KeyedStream
from doppel.redaction.word_level import NO_ESTIMATE, WordMechanism, cumulated, uniform
from doppel.redaction.word_vectors import WordVectors


class CusText(WordMechanism):
    """The vocabulary falls into sets of k near words, and a word gives way to one of its own set (Chen et al., 2023).

    Sets are made in the order of the vocabulary: a word that is in none takes the k − 1 nearest that are in none (their
    algorithm 1). Within a set Pr[y | x] ∝ e^{ε u(x, y)/2}, where u falls from 1 to 0 with the distance, from the
    nearest word of the set to the farthest. A word that the vocabulary lacks counts as the nearest one in it.

    Formal guarantees:
        The sets are public, u is in [0, 1], so for x and x' of one set Pr[y | x] ≤ e^ε Pr[y | x'] (McSherry and Talwar,
        2007). Words of two sets share no y: which set a word is of is *not* hidden, by any ε.

    Args:
        vectors: The vocabulary.
        epsilon: ε.
        k: Words of a set; the last one may have fewer, or one more.
    """

    def __init__(self, vectors: WordVectors, epsilon: float, k: int = 20) -> None:
        super().__init__(vectors, epsilon)
        if not 2 <= k <= len(vectors.words):
            raise UserError(f"--set-size is {k}: give 2 at least, and at most the {len(vectors.words)} words there are")
        self.k = k

    @cached_property
    def sets(self) -> list[NDArray[np.int64]]:
        """The words of each set, by their numbers."""
        table = self.vectors.vectors.astype(np.float32)
        halves, sets = 0.5 * np.square(table).sum(1), list[NDArray[np.int64]]()
        free = np.ones(len(table), dtype=bool)
        with tqdm(total=len(free), desc="sets of words", unit="word", leave=False, disable=None) as bar:
            for word in range(len(free)):
                if not free[word]:
                    continue
                distances = np.where(free, halves - table @ table[word], np.inf)
                distances[word] = -np.inf
                own = np.argsort(distances, kind="stable")[: min(self.k, int(free.sum()))]
                free[own] = False
                sets.append(own)
                bar.update(len(own))
        if len(sets[-1]) == 1:  # which would always stay as it is
            sets[-2:] = [np.concatenate(sets[-2:])]
        return sets

    @cached_property
    def _set_of(self) -> NDArray[np.int64]:
        place = np.empty(len(self.vectors.words), dtype=np.int64)
        for number, own in enumerate(self.sets):
            place[own] = number
        return place

    def draw(self, words: Sequence[str], stream: KeyedStream) -> NDArray[np.int64]:
        logits, candidates = self.logits(self.known(words))
        chosen = (cumulated(logits) < uniform(stream, len(words), 1)).sum(1)
        return candidates[np.arange(len(words)), chosen]

    def known(self, words: Sequence[str]) -> NDArray[np.int64]:
        """Return the number of each word in the vocabulary, or of the nearest one, [n]."""
        places = self.vectors.places(words)
        others = np.flatnonzero(places < 0)
        if len(others):
            places[others] = self.vectors.nearest(self.vectors.of([words[place] for place in others.tolist()]))
        return places

    def logits(self, words_N: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return logarithms of the probabilities up to a constant [n, K], and the words that these are of [n, K].

        Where a set has fewer than the largest, −∞ is that of no word.
        """
        own = [self.sets[place] for place in self._set_of[words_N]]
        width = max(map(len, own))
        candidates = np.stack([np.pad(words, (0, width - len(words)), mode="edge") for words in own])
        is_none = np.arange(width) >= np.array([len(words) for words in own])[:, None]
        table = self.vectors.vectors
        distances = np.linalg.norm(table[candidates] - table[words_N][:, None], axis=2)
        nearest, farthest = distances.min(1, keepdims=True), distances.max(1, keepdims=True)
        scores = (farthest - distances) / np.maximum(farthest - nearest, np.finfo(np.float64).tiny)
        return np.where(is_none, -np.inf, 0.5 * self.epsilon * scores), candidates

    @property
    def statement(self) -> str:
        """What ε bounds here, in one sentence."""
        return (
            f"word-level ε = {self.epsilon:g} (per word, in its set: {NO_ESTIMATE}): two of the {self.k} words of a "
            f"set are told apart by a factor of at most e^{self.epsilon:g}; which set a word is of is not hidden at all"
        )
