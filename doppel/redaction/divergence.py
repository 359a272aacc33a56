"""The Rényi divergence of two sets of vectors, by nearest neighbours, with a part for vectors that occur again.

For distributions P and Q, D_α(P‖Q) = log E_P[(p/q)^(α−1)] / (α−1), in nats; its limit at α = 1 is the Kullback-Leibler
divergence. A text that occurs again, such as one of which redaction leaves one mask, has a probability and no density.
So a vector that both sets together hold more than once is *repeated*: its p/q is a ratio of counts. The others are
*points*: theirs is a ratio of densities, each k/(N ρ^m) up to a factor, where ρ is the distance of the k-th nearest
other point of the set and m the dimension that the points fill.

- ``knn``: Póczos and Schneider (2011, *On the estimation of α-divergences*). ρ^m is random, so a power of its ratio is
  too large on average by Γ(k−α+1)Γ(k+α−1)/Γ(k)², which is finite for α < k + 1 alone, and by which it is divided.
- ``noshad``: nearest neighbour ratios (Noshad et al., 2017, *Direct estimation of information divergence using nearest
  neighbor ratios*): how many of the k nearest points of both sets are of P and of Q, around each point of Q. Too large
  at zero divergence, and too small where few points of P lie near any of Q.

Appendix 4.1 of Gusain and Leith prints the mean of the logarithm in place of the logarithm of the mean, which is
negative, counts repeated vectors among the neighbours of points, although no density holds them, and takes for m the
number of coordinates.

None of this is a guarantee: the estimate is of these samples, under this encoder, and may be too small
(:mod:`~doppel.redaction.comparison` measures by how much, on sets whose divergence is known).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, gammaln, logsumexp

from doppel.errors import UserError
from doppel.redaction.neighbours import Distinct, Floats, Whole, distinct, intrinsic_dimension, neighbours

Estimator = Literal["knn", "noshad"]

#: Occurrences of a repeated vector in a set that does not hold it: half of one, the prior of Krichevsky and Trofimov.
_UNSEEN = 0.5


@dataclass(frozen=True)
class Direction:
    """D_α(P‖Q) in the two parts that add up: those of repeated vectors and of points.

    Attributes:
        alpha: Order.
        repeated: E_P[(p/q)^(α−1)] over repeated vectors, as a logarithm; at α = 1 E_P[log p/q].
        points: Likewise over points.
        share: Share of P that are points.
        only: Share of P that are repeated vectors which Q lacks: if Q can never have them, the divergence is infinite.
    """

    alpha: float
    repeated: float
    points: float
    share: float
    only: float

    def divergence(self, correction: float = 0.0) -> float:
        """In nats, not below 0.

        Args:
            correction: Added to the divergence of the points alone.
        """
        if self.alpha == 1:
            return max(0.0, self.repeated + self.points + self.share * correction)
        order = self.alpha - 1
        return max(0.0, float(np.logaddexp(self.repeated, self.points + order * correction)) / order)


@dataclass(frozen=True)
class Around:
    """What lies around each point, in either set.

    Attributes:
        radii: Distance of the k-th nearest point, or of the last one where there are fewer, [2, num_points].
        found: How many distinct points are that near, [2, num_points].
        weights: How many rows these are, [2, num_points].
        shared: How many rows of either set are among the k nearest points of both, [2, num_points].
    """

    radii: Floats
    found: Whole
    weights: Whole
    shared: Whole


class Pair:
    """Two sets of vectors, whose divergence can be estimated for any order, and for rows drawn from them.

    Args:
        a: [num_a, d]; equal rows are one vector that occurs again.
        b: [num_b, d].
        k: Neighbours.
        estimator: See the module.
        spare: So many times k neighbours are found, for rows that are drawn anew; 1 is enough for the rows themselves.
        progress: Show a bar.

    Raises:
        DataError: The vectors cannot be compared.
        UserError: k is not positive.
    """

    def __init__(
        self,
        a: NDArray[np.floating],
        b: NDArray[np.floating],
        k: int = 40,
        estimator: Estimator = "knn",
        spare: int = 1,
        progress: bool = False,
    ) -> None:
        if k < 1:
            raise UserError(f"there is no {k}-th neighbour: give at least 1", about="k")
        self.k, self.estimator = k, estimator
        self.rows: Distinct = distinct(a, b)
        single = ~self.rows.repeats
        sizes = self.rows.counts[:, single].sum(1)
        self.is_point = single if sizes.min() > k else np.zeros_like(single)  # fewer have no k-th neighbour
        self.points = self.rows.vectors[self.is_point]
        self.is_first = self.rows.counts[0, self.is_point] > 0
        self.near = neighbours(self.points, self.is_first, k * spare, progress) if len(self.points) else None
        self.dimension = 0.0  # of the points
        if self.near is not None:
            self.dimension = intrinsic_dimension(self.near, self.is_first, k, self.points.shape[1])

    def directions(self, alpha: float, counts: Whole | None = None) -> tuple[Direction, Direction]:
        """D_α(A‖B) and D_α(B‖A).

        Args:
            alpha: Order, at least 1.
            counts: How often each distinct vector is in either set, [2, num_distinct], in place of the sets' own.

        Raises:
            UserError: See :func:`check_order`.
        """
        check_order(alpha, self.k, self.estimator)
        counts = self.rows.counts if counts is None else counts
        sizes = counts.sum(1)
        around = self._around(counts)
        first = self._direction(alpha, counts, sizes, around)
        turned = None if around is None else Around(*(each[::-1] for each in vars(around).values()))
        return first, self._direction(alpha, counts[::-1], sizes[::-1], turned)

    def shuffled(self) -> Pair:
        """The same rows for draws that give points to another set: a list ends where it may lack one."""
        if self.near is None:
            return self
        ended = np.where(self.near.distances <= self.near.complete[:, None], self.near.distances, np.inf)
        made = object.__new__(Pair)
        vars(made).update(vars(self) | {"near": replace(self.near, distances=ended)})
        return made

    def _around(self, counts: Whole) -> Around | None:
        """Which points are near, where each occurs so often; None without points."""
        if self.near is None:
            return None
        weights = counts[:, self.is_point]
        is_there = np.isfinite(self.near.distances)
        parts = []
        for own in (weights[0], weights[1], weights.sum(0)):
            here = np.where(is_there, own[self.near.places], 0)
            among = (here > 0) & (np.cumsum(here > 0, 1) <= self.k)
            parts.append((here, among))
        radii = [np.where(among, self.near.distances, 0).max(1) for _, among in parts[:2]]
        found = [among.sum(1) for _, among in parts[:2]]
        heavy = [(here * among).sum(1) for here, among in parts[:2]]
        shared = [(here * parts[2][1]).sum(1) for here, _ in parts[:2]]
        return Around(np.stack(radii), np.stack(found), np.stack(heavy), np.stack(shared))

    def _direction(self, alpha: float, counts: Whole, sizes: Whole, around: Around | None) -> Direction:
        """D_α of the first set from the second."""
        (p, q), order = counts[:, ~self.is_point], alpha - 1
        is_in = p > 0
        ratios = np.log(p[is_in] / sizes[0]) - np.log(np.maximum(q[is_in], _UNSEEN) / sizes[1])
        log_shares = np.log(p[is_in] / sizes[0])
        only = float(p[(p > 0) & (q == 0)].sum() / sizes[0])
        share = float(counts[0, self.is_point].sum() / sizes[0])
        points = self._points(alpha, counts[:, self.is_point], sizes, around)
        if alpha == 1:
            return Direction(alpha, float(np.exp(log_shares) @ ratios), 0.0 if points is None else points, share, only)
        repeated = float(logsumexp(log_shares + order * ratios)) if is_in.any() else -np.inf
        return Direction(alpha, repeated, -np.inf if points is None else points, share, only)

    def _points(self, alpha: float, weights: Whole, sizes: Whole, around: Around | None) -> float | None:
        """The part of the points; None where there is none."""
        if around is None or not weights[0].any() or not weights[1].any():
            return None
        order, of = alpha - 1, 0 if self.estimator == "knn" else 1
        is_in = weights[of] > 0
        if self.estimator == "noshad":
            near, far = around.shared[:, is_in]
            if not near.any():
                raise UserError(
                    "the two sets do not overlap: no point of one has any of the other among its nearest neighbours, "
                    "and noshad compares nothing else; give --estimator knn, or a larger k"
                )
            log_shares = np.log(weights[1, is_in] / sizes[1])
            with np.errstate(divide="ignore"):
                ratios = np.log(near / sizes[0]) - np.log((far + 1) / sizes[1])
            if alpha == 1:
                positive = near > 0
                terms = np.exp(log_shares[positive] + ratios[positive]) * ratios[positive]
                return float(terms.sum())
            return float(logsumexp(log_shares + alpha * ratios))
        is_in &= (around.found[0] > max(order, 0)) & (around.found[1] > 0) & (around.radii > 0).all(0)
        if not is_in.any():
            return None
        k_p, k_q = around.found[:, is_in]
        weighed = np.log(around.weights[0, is_in] / k_p) - np.log(around.weights[1, is_in] / k_q)
        others = sizes[0] * (1 - 1 / weights[0].sum())  # a point is none of its own neighbours
        volume = self.dimension * (np.log(around.radii[1, is_in]) - np.log(around.radii[0, is_in]))
        ratios = weighed + np.log(sizes[1] / others) + volume
        log_shares = np.log(weights[0, is_in] / weights[0, is_in].sum() * weights[0].sum() / sizes[0])
        if alpha == 1:
            return float(np.exp(log_shares) @ (ratios + digamma(k_p) - digamma(k_q)))
        unbiased = gammaln(k_p) - gammaln(k_p - order) + gammaln(k_q) - gammaln(k_q + order)
        return float(logsumexp(log_shares + order * ratios + unbiased))


def of_points(directions: Sequence[Direction]) -> Floats:
    """D_α(P‖Q) and D_α(Q‖P) of the points alone, each set's scaled to one distribution, [2]; may be below 0."""
    found = []
    for own, other in (directions, directions[::-1]):
        if own.alpha == 1:
            found.append(own.points / own.share - np.log(own.share / other.share))
        else:
            scale = own.alpha * np.log(own.share) + (1 - own.alpha) * np.log(other.share)
            found.append((own.points - scale) / (own.alpha - 1))
    return np.array(found)


def check_order(alpha: float, k: int, estimator: Estimator = "knn") -> None:
    """Refuse orders for which the estimator is not defined.

    Raises:
        UserError: α is below 1, or the factor that makes ``knn`` right on average is infinite.
    """
    if not alpha >= 1 or not np.isfinite(alpha):
        raise UserError(f"there is no estimate of order {alpha:g}: give a finite order of at least 1", about="alpha")
    if estimator == "knn" and alpha >= k + 1:
        raise UserError(
            f"the estimate by {k} neighbours exists for orders below {k + 1} alone, and is steady up to {k / 2:g}: for "
            f"order {alpha:g} give at least {int(np.ceil(2 * alpha))} neighbours",
            about="alpha",
        )
