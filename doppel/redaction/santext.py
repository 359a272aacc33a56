"""The exponential mechanism over the whole vocabulary (Yue et al., 2021)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from doppel.privacy.secret import KeyedStream
from doppel.redaction.word_level import WordMechanism, cumulated, uniform

#: Words whose distances to the whole vocabulary are held together.
_AT_ONCE = 128


class SanText(WordMechanism):
    """Pr[y | x] ∝ e^{−ε d(x, y)/2} (Yue et al., 2021, equation 3).

    Formal guarantees:
        e^{−ε d(x, y)/2} is at most e^{ε d(x, x')/2} of what it is for x', and the sum over y is at least e^{−ε d(x,
        x')/2} of it: d_X-privacy with ε, for any x, in the vocabulary or not.
    """

    def draw(self, words: Sequence[str], stream: KeyedStream) -> NDArray[np.int64]:
        different, which = np.unique(np.array(words, dtype=object), return_inverse=True)
        targets, drawn = uniform(stream, len(words)), np.empty(len(words), dtype=np.int64)
        for start in range(0, len(different), _AT_ONCE):
            cumulative = cumulated(self.logits(different[start : start + _AT_ONCE].tolist()))
            for row, shares in enumerate(cumulative, start):
                places = np.flatnonzero(which == row)
                drawn[places] = np.searchsorted(shares, targets[places])
        return drawn

    def logits(self, words: Sequence[str]) -> NDArray[np.float64]:
        """Return logarithms of the probabilities up to a constant of each word, [n, V]."""
        logits: NDArray[np.float64] = -0.5 * self.epsilon * self.vectors.distances(self.vectors.of(words))
        return logits
