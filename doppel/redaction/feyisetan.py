"""Noise on a word's vector, then the nearest word (Feyisetan et al., 2020)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from doppel.privacy.noise import gaussians
from doppel.privacy.secret import KeyedStream
from doppel.redaction.word_level import WordMechanism, uniform

#: Words whose distances to the whole vocabulary are held together.
_AT_ONCE = 256


class Feyisetan(WordMechanism):
    """y is the word nearest to x + z, where z has the density ∝ e^{−ε‖z‖} (Feyisetan et al., 2020, algorithm 1).

    Formal guarantees:
        By the triangle inequality the density of x + z at any place is at most e^{ε‖x − x'‖} that of x' + z, and the
        nearest word is post-processing: d_X-privacy with ε, for any x, in the vocabulary or not. In D dimensions z has
        a uniform direction, and ‖z‖ is Gamma-distributed with shape D and scale 1/ε: of mean D/ε.
    """

    def draw(self, words: Sequence[str], stream: KeyedStream) -> NDArray[np.int64]:
        drawn = []
        for start in range(0, len(words), _AT_ONCE):
            points = self.vectors.of(words[start : start + _AT_ONCE])
            drawn.append(self.vectors.nearest(points + self.noise(len(points), points.shape[1], stream)))
        return np.concatenate(drawn)

    def noise(self, num: int, size: int, stream: KeyedStream) -> NDArray[np.float64]:
        """Return z for each word, [n, D]."""
        count = num * size + num * size % 2
        directions = (
            torch.cat(gaussians(*torch.from_numpy(stream.words(count)).chunk(2)))
            .numpy()[: num * size]
            .reshape(num, size)
        )
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        norms = -np.log(uniform(stream, num, size)).sum(1) / self.epsilon  # D exponentials add up to Gamma(D, 1/ε)
        noise: NDArray[np.float64] = directions * norms[:, None]
        return noise
