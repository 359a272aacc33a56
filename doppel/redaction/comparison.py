"""How far two sets are apart: their divergence, corrected by what the estimate misses, its null and its intervals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from scipy.special import stdtrit
from tqdm import tqdm

from doppel.redaction.divergence import OneSidedDivergence, Pair, of_points_alone
from doppel.redaction.gaussian_reference import GaussianReference
from doppel.redaction.neighbours import Floats, Whole

#: Share of equal sets, of the same sizes, whose larger direction is taken for larger.
_CHANCE = 0.01


class Comparison:
    """How far two sets are apart, with what the estimator misses on normal distributions as far apart.

    Neighbours of a point in a sparse region lie on one side of it, towards the bulk, so the ratio of densities is
    estimated as less extreme than it is, the more so the more dimensions there are: for a unit shift of normal
    distributions in 8 dimensions, of which the divergence at α = 2 is 1, 2,000 points of each say .5. What the
    estimator misses is measured (a parametric bootstrap, Efron and Tibshirani, 1993, chapter 10): pairs of sets are
    drawn from two normal distributions with the sets' common covariance and the distance between their means, whose
    divergence is known, and the mean error of the estimates is subtracted. Where the points are not normal, this is a
    model and no measurement; ``references=0`` leaves it out.

    Args:
        pair: The sets; rows that are drawn anew need its ``spare``.
        references: Pairs of sets that are drawn; 0 or at least 2.
        seed: Of all that is drawn.
        progress: Show bars.
    """

    def __init__(self, pair: Pair, references: int = 6, seed: int = 0, progress: bool = False) -> None:
        self.pair, self.seed, self.progress = pair, seed, progress
        points = self.pair.points
        self.gaussian = GaussianReference(points, self.pair.is_first) if references and len(points) else None
        self.references: list[Pair] = []
        if self.gaussian is not None:
            drawn = self.gaussian.draw(references, np.random.default_rng([seed, 0]))
            bar = tqdm(drawn, "normal pairs", references, disable=None if progress else True, leave=False)
            self.references = [Pair(first, second, pair.k) for first, second in bar]

    def uncorrected(self, alpha: float) -> tuple[OneSidedDivergence, OneSidedDivergence]:
        """Estimate D_α(A‖B) and D_α(B‖A) by nearest neighbours."""
        return self.pair.divergences(alpha)

    def corrections(self, alpha: float) -> tuple[float, float]:
        """Return the correction of the points' D_α(A‖B) and D_α(B‖A).

        First what the estimates miss on average on the normal pairs. Then, where the two directions differ by no more
        than those of one more normal pair would with probability .99 (a prediction interval of Student's t), both get
        the mean: normal pairs have one divergence either way, so there the difference is chance. Without that the
        larger direction of two equal sets is far from 0.
        """
        if self.gaussian is None or not self.references:
            return 0.0, 0.0
        drawn = np.array([of_points_alone(pair.divergences(alpha)) for pair in self.references])
        missed = self.gaussian.divergence(alpha) - drawn.mean(0)
        ours = of_points_alone(self.uncorrected(alpha)) + missed
        half, num = (ours[0] - ours[1]) / 2, len(drawn)
        by_chance = (1 + 1 / num) ** 0.5 * ((drawn[:, 0] - drawn[:, 1]) / 2).std(ddof=1)
        moved = half if abs(half) <= by_chance * stdtrit(num - 1, 1 - _CHANCE / 2) else 0.0
        return float(missed[0] - moved), float(missed[1] + moved)

    def divergences(self, alpha: float) -> tuple[float, float]:
        """Return D_α(A‖B) and D_α(B‖A) in nats, corrected, not below 0."""
        pairs = zip(self.uncorrected(alpha), self.corrections(alpha), strict=True)
        first, second = (each.divergence(correction) for each, correction in pairs)
        return first, second

    def null(self, alpha: float, num: int) -> Floats:
        """Return the larger direction, uncorrected, under random labels of the rows, [num]."""
        rng = np.random.default_rng([self.seed, 1])
        pool, size = self.pair.rows.counts.sum(0), int(self.pair.rows.counts[0].sum())

        def draws() -> Iterator[Whole]:
            for _ in range(num):
                first = rng.multivariate_hypergeometric(pool, size, method="marginals")
                yield np.stack([first, pool - first])

        found = (self.pair.divergences(alpha, counts, relabelled=True) for counts in self._bar(draws(), "null", num))
        return np.array([_larger(each) for each in found])

    def bootstrap(self, alpha: float, num: int) -> Floats:
        """Return the larger direction, corrected, of as many rows drawn with replacement, [num].

        A row that is drawn twice makes its neighbourhood look denser and its text look frequent: the mean is off, and
        the spread is what this is for.
        """
        rng, counts = np.random.default_rng([self.seed, 2]), self.pair.rows.counts
        draws = (np.stack([rng.multinomial(side.sum(), side / side.sum()) for side in counts]) for _ in range(num))
        return self._drawn(alpha, self._bar(draws, "bootstrap", num), copies=2)

    def subsamples(self, alpha: float, num: int) -> Floats:
        """Return the larger direction, corrected, of half of the rows, drawn without replacement, [num].

        No row becomes a duplicate. Half of the rows have √2 times the spread of all rows; and since the draws overlap,
        they differ from the estimate of all rows by the spread of all rows itself (Politis and Romano, 1994).
        """
        rng, counts = np.random.default_rng([self.seed, 3]), self.pair.rows.counts
        halves = [max(1, int(side.sum()) // 2) for side in counts]
        draws = (
            np.stack(
                [
                    rng.multivariate_hypergeometric(side, half, method="marginals")
                    for side, half in zip(counts, halves, strict=True)
                ]
            )
            for _ in range(num)
        )
        return self._drawn(alpha, self._bar(draws, "subsamples", num), copies=1)

    def _drawn(self, alpha: float, draws: Iterator[Whole], copies: int) -> Floats:
        """The larger direction of each draw; the correction grows with the squared distance of the draw's means."""
        corrections, found = self.corrections(alpha), []
        for counts in draws:
            grown = 1.0
            if self.gaussian is not None and self.gaussian.squared > 0:
                grown = self.gaussian.of_rows(counts[:, self.pair.is_point], copies) / self.gaussian.squared
            found.append(_larger(self.pair.divergences(alpha, counts), [grown * each for each in corrections]))
        return np.array(found)

    def _bar(self, draws: Iterator[Whole], name: str, num: int) -> Iterator[Whole]:
        return iter(tqdm(draws, name, num, disable=None if self.progress else True, leave=False))


def _larger(divergences: Sequence[OneSidedDivergence], corrections: Sequence[float] = (0.0, 0.0)) -> float:
    return max(each.divergence(correction) for each, correction in zip(divergences, corrections, strict=True))
