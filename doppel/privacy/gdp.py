"""Gaussian differential privacy: what a release of μ costs, and a budget from which releases of any size are paid.

A mechanism is μ-GDP if to tell neighbouring data sets apart by what it releases is at least as hard as to tell N(0, 1)
from N(μ, 1) (Dong, Roth and Su, 2022, *Gaussian differential privacy*). Noise of standard deviation σ on a sum of
sensitivity 1 is 1/σ-GDP. So whatever is μ-GDP counts in the ledger as one Gaussian release with noise multiplier 1/μ:
that release dominates it, in both directions of add and remove, and PLD composes dominating pairs (Zhu, Dong and Wang,
2022, *Optimal accounting of differential privacy via characteristic function*, theorem 10).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from scipy.special import expit, logit, ndtr, ndtri

from doppel.privacy.accounting import CalibrationError
from doppel.privacy.histogram import bernoulli_exp

if TYPE_CHECKING:
    from doppel.privacy.secret import KeyedStream

#: ε of a selection is taken in whole multiples of 1/_GRID.
_GRID = 2**40


def epsilon_of_choice(mu: float) -> float:
    """Return ε of an exponential mechanism (:func:`choose`) that is μ-GDP: 2 logit(Φ(μ/2)).

    Formal guarantees:
        The exponential mechanism has *bounded range* (Durfee and Rogers, 2019): between neighbours, the log-likelihood
        ratio of outcomes lies in [t - ε, t] for some t. Among all ratios with these ends and mean 1, that of two
        outcomes, with q = Q(first) and logit p = logit q + ε, is the largest in the convex order and so dominates
        (Blackwell). Its trade-off is two straight lines that meet in (q, 1 - p), so the convex one of N(0, 1) and
        N(μ, 1) lies below if Φ⁻¹(p) - Φ⁻¹(q) ≤ μ. For x = logit q the left side is h(x + ε) - h(x) with the odd
        h = Φ⁻¹ ∘ expit, concave for x > 0 (van Zwet, 1964). So it is largest at x = -ε/2: 2 Φ⁻¹(expit(ε/2)).

    A μ above 16, where Φ(μ/2) is no longer below 1, counts as 16.
    """
    return 2.0 * float(logit(ndtr(min(mu, 16.0) / 2)))


def mu_of_choice(epsilon: float) -> float:
    """Return μ of an exponential mechanism: the inverse of :func:`epsilon_of_choice`."""
    return 2.0 * float(ndtri(expit(epsilon / 2)))


def choose(stream: KeyedStream, scores: Sequence[int], sensitivity: int, epsilon: float) -> int:
    """Place of a high score, drawn with probability proportional to exp(ε · score / (2 · sensitivity)).

    Formal guarantees:
        The exponential mechanism (McSherry and Talwar, 2007): if one unit moves each score by at most ``sensitivity``,
        up or down, the place is ε-DP, of bounded range ε and so `mu_of_choice(ε)`-GDP, however many scores there are.
        (The loss of an argmax under *Gaussian* noise grows with their number.) It is drawn exactly, in whole numbers: a
        place is proposed uniformly and taken with probability exp(-ε · gap / (2 · sensitivity)), of the gap to the
        highest score. How many were proposed is not told.

    Args:
        stream: Where the draws come from.
        scores: Whole numbers, at least one.
        sensitivity: In the unit of the scores, at least 1.
        epsilon: Above 0; cut to a multiple of 2⁻⁴⁰.
    """
    scaled, best = int(epsilon * _GRID), max(scores)
    while True:
        place = stream.randrange(len(scores))
        if bernoulli_exp(stream, scaled * (best - scores[place]), 2 * sensitivity * _GRID):
            return place


class GaussianBudget:
    """μ² that releases are paid from, each with a μ that may depend on all that was released before it.

    Formal guarantees:
        If every release is μₜ-GDP given those before it, and the sum of all μₜ² never passes μ², then all of them
        together are μ-GDP (Smith and Thakurta, 2022, *Fully adaptive composition for Gaussian differential privacy*:
        the sum of squares is a filter, at no loss against μₜ that are fixed beforehand). :meth:`spend` refuses a
        release beyond it, before it is made.

    Args:
        mu: μ of all releases together.

    Attributes:
        remaining: μ² that is left.
    """

    def __init__(self, mu: float) -> None:
        if not 0.0 < mu < math.inf:
            raise CalibrationError(f"mu is {mu}: give a finite number above 0")
        self.mu = mu
        self.remaining = mu * mu

    @property
    def is_used_up(self) -> bool:
        """Whether nothing is left but what rounding makes."""
        return self.remaining <= 1e-9 * self.mu**2

    def spend(self, square: float) -> float:
        """Pay for one release of this μ², and return its μ.

        Raises:
            CalibrationError: It is not positive, or more than is left; nothing is spent.
        """
        if not 0.0 < square <= self.remaining * (1 + 1e-12):
            raise CalibrationError(f"a release of mu² = {square:.6g} is not in the {self.remaining:.6g} that are left")
        square = min(square, self.remaining)
        self.remaining -= square
        return math.sqrt(square)
