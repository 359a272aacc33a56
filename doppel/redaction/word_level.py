"""Word-level differential privacy: each word of a text gives way to one that is drawn for it, whatever its neighbours.

Formal guarantees:
    A mechanism draws y for a word x, each time anew, from the public vocabulary: Pr[y | x]. It is *d_X-private* with ε
    if Pr[y | x] ≤ e^{ε d(x, x')} Pr[y | x'] for all x, x' and y, with d the distance of their public vectors
    (Chatzikokolakis et al., 2013): near words are hard to tell apart, far ones are not. That ε is a parameter of the
    mechanism for one word. It scales with the vectors, so it is no measure beside another encoder's, and none beside
    the ε of a training: that one is of all that somebody said. It bounds nothing for a whole text at any useful size,
    for the words of a text add up, and depend on each other (Kifer and Machanavajjhala, 2011). The number of words and
    their order stay. So none of it enters a ledger.

    *Randomness* is a cryptographic stream under a secret of the operating system
    (:class:`~doppel.privacy.secret.Secret`). *Floating point.* What comes out is a word, never a noisy number. A
    distance is off by some 1e-8, so a probability by a factor of e^(ε·1e-8), and one below 2⁻⁵³ may be zero.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from doppel.errors import UserError
from doppel.privacy.secret import KeyedStream, Secret
from doppel.redaction.word_vectors import WordVectors
from doppel.text.words import tokens_of

#: Words that are drawn for together.
_BLOCK = 4096
#: What every figure of this room says of itself.
NO_ESTIMATE = "no estimate of what a record leaks"


class WordMechanism(ABC):
    """Draws a word of the vocabulary in place of another.

    Args:
        vectors: The vocabulary.
        epsilon: ε > 0, for one word.

    Raises:
        UserError: ``epsilon`` is not above 0.
    """

    def __init__(self, vectors: WordVectors, epsilon: float) -> None:
        if not 0 < epsilon < float("inf"):
            raise UserError(f"--epsilon is {epsilon}: give a number above 0; larger ones keep more words")
        self.vectors, self.epsilon = vectors, epsilon

    @abstractmethod
    def draw(self, words: Sequence[str], stream: KeyedStream) -> NDArray[np.int64]:
        """Draw a word of the vocabulary for each of n words, by its number, [n]; each by random numbers of its own."""

    @property
    def statement(self) -> str:
        """What ε bounds here, in one sentence."""
        usual, nearest = self.vectors.scale()
        return (
            f"word-level ε = {self.epsilon:g} (metric, per word: {NO_ESTIMATE}): two words at distance t are told "
            f"apart by a factor of at most e^({self.epsilon:g}·t); a word's nearest one is at t = {nearest:.2g}, and "
            f"two words are {usual:.2g} apart"
        )


class Perturber:
    """Perturbs texts word by word.

    Args:
        mechanism: Draws the words.
        seed: None for the operating system's entropy; a number is for tests and warns.
    """

    def __init__(self, mechanism: WordMechanism, seed: int | None = None) -> None:
        self.mechanism = mechanism
        self._secret = Secret(seed)
        self._num_blocks = 0

    def __call__(self, texts: Sequence[str]) -> list[str]:
        """As many words for each text, in lower case, with blanks between; empty where a text has no word."""
        words = [tokens_of(text) for text in texts]
        drawn = iter(self._draw([word for row in words for word in row]))
        return [" ".join(next(drawn) for _ in row) for row in words]

    def _draw(self, words: list[str]) -> list[str]:
        vectors, drawn = self.mechanism.vectors, list[str]()
        for start in range(0, len(words), _BLOCK):
            stream = self._secret.stream("words", self._num_blocks)  # each is used once
            self._num_blocks += 1
            places = self.mechanism.draw(words[start : start + _BLOCK], stream)
            drawn += [vectors.words[place] for place in places]
        return drawn


def uniform(stream: KeyedStream, *shape: int) -> NDArray[np.float64]:
    """Return numbers in (0, 1), multiples of 2⁻⁵³ but for an offset of half of one."""
    words = stream.words(int(np.prod(shape))).view(np.uint64) >> np.uint64(11)
    return ((words.astype(np.float64) + 0.5) * 2.0**-53).reshape(shape)


def cumulated(logits_NV: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return cumulative probabilities, in proportion to e^logit, of each row's columns, [n, V]."""
    cumulative = np.cumsum(np.exp(logits_NV - logits_NV.max(1, keepdims=True)), axis=1)
    shares: NDArray[np.float64] = cumulative / cumulative[:, -1:]
    return shares
