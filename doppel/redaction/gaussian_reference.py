"""Two normal distributions that differ in their means as two sets of points do: pairs whose divergence is known."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from doppel.redaction.neighbours import Floats, Whole

#: Rows that a direction of the mean difference needs: with fewer, the covariance that it is measured by is too unsure.
_ROWS_PER_DIRECTION = 10
#: Directions in which points differ by less than this share of the widest one are none.
_FLAT = 1e-10


class GaussianReference:
    """How far the means of two sets are apart, in standard deviations within the sets (Mahalanobis, 1936).

    The two normal distributions N(μ₀, Σ) and N(μ₁, Σ) have D_α = α Δ²/2 with Δ² = (μ₁−μ₀)ᵀ Σ⁻¹ (μ₁−μ₀). What samples
    say is too large, for their means differ by chance and their covariance fits them too well; the estimate here is
    unbiased (Lachenbruch and Mickey, 1968), but not below 0. It looks at the directions of largest variance, one for
    every ten rows: fewer directions can but lessen a divergence.

    Attributes:
        squared: Δ².

    Args:
        points: [num_points, d].
        is_first: Which of them are of the first set.
    """

    def __init__(self, points: NDArray[np.float32], is_first: NDArray[np.bool_]) -> None:
        x = points.astype(np.float64)
        self.sizes = int(is_first.sum()), int((~is_first).sum())
        means = x[is_first].mean(0), x[~is_first].mean(0)
        within = x - np.where(is_first[:, None], *means)
        free = max(1, len(x) - 2)
        variances, directions = np.linalg.eigh(within.T @ within / free)
        self._deviations = np.sqrt(variances.clip(0)[::-1])
        num = min(len(x) // _ROWS_PER_DIRECTION, int((variances > _FLAT * variances[-1]).sum()))
        self._scores = (x - means[0]) @ directions[:, ::-1][:, :num] / self._deviations[:num]
        self._is_first = is_first
        self._step = self._scores[~is_first].mean(0) - self._scores[is_first].mean(0)
        self._shrunk = max(0.0, (free - num - 1) / free)
        self.squared = self._unbiased(self._step, 1 / self.sizes[0] + 1 / self.sizes[1])

    def divergence(self, alpha: float) -> float:
        """Return d_α of the two normal distributions, either way, in nats."""
        return alpha * self.squared / 2

    def of_rows(self, weights: Whole, copies: int = 1) -> float:
        """Return Δ² of rows drawn from the sets.

        Args:
            weights: How often each point is drawn, of either set, [2, num_points].
            copies: By how many draws the means vary: 2 for rows drawn with replacement from what was drawn itself.
        """
        totals = weights.sum(1)
        if not totals.all():
            return 0.0
        means = weights @ self._scores / totals[:, None]
        return self._unbiased(means[1] - means[0], copies * float((1 / totals).sum()))

    def draw(self, num: int, rng: np.random.Generator) -> Iterator[tuple[Floats, Floats]]:
        """Yield pairs of sets from the two normal distributions, as large as the sets of points, randomly rotated."""
        length = float(np.linalg.norm(self._step))
        step = np.zeros_like(self._deviations)
        if length > 0:
            step[: len(self._step)] = self._step * self.squared**0.5 / length
        for _ in range(num):
            first, second = (rng.standard_normal((size, len(step))) for size in self.sizes)
            yield first * self._deviations, (second + step) * self._deviations

    def _unbiased(self, step: Floats, inverse_sizes: float) -> float:
        return max(0.0, self._shrunk * float(step @ step) - len(step) * inverse_sizes)
