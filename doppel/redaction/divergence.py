"""The Rényi divergence of two sets of vectors, by nearest neighbours, with a part for vectors that occur again.

For distributions P and Q, D_α(P‖Q) = log E_P[(p/q)^(α−1)] / (α−1), in nats; its limit at α = 1 is the Kullback-Leibler
divergence. A text that occurs again, such as one of which redaction leaves one mask, has a probability and no density.
So a vector that both sets together hold more than once is *repeated*: its p/q is a ratio of counts. The others are
*points*: theirs is a ratio of densities, each k/(N ρ^m) up to a factor, where ρ is the distance of the k-th nearest
other point of the set and m the dimension that the points fill.

Póczos and Schneider (2011, *On the estimation of α-divergences*): ρ^m is random, so a power of its ratio is too large
on average by Γ(k−α+1)Γ(k+α−1)/Γ(k)², which is finite for α < k + 1 alone, and by which it is divided.

Appendix 4.1 of Gusain and Leith prints the mean of the logarithm in place of the logarithm of the mean, which is
negative, counts repeated vectors among the neighbours of points, although no density holds them, and takes for m the
number of coordinates.

None of this is a guarantee: the estimate is of these samples, under this encoder, and may be too small
(:mod:`~doppel.redaction.comparison` measures by how much, on sets whose divergence is known).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, gammaln, logsumexp

from doppel.errors import UserError
from doppel.redaction.neighbours import Distinct, Floats, Neighbours, Whole, distinct, intrinsic_dimension, neighbours

#: Occurrences of a repeated vector in a set that does not hold it: half of one, the prior of Krichevsky and Trofimov.
_UNSEEN = 0.5


@dataclass(frozen=True)
class OneSidedDivergence:
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
        """Return the divergence in nats, not below 0.

        Args:
            correction: Added to the divergence of the points alone.
        """
        if self.alpha == 1:
            return max(0.0, self.repeated + self.points + self.share * correction)
        order = self.alpha - 1
        return max(0.0, float(np.logaddexp(self.repeated, self.points + order * correction)) / order)


@dataclass(frozen=True)
class Neighbourhood:
    """The nearest points of one set around each point of both.

    Attributes:
        radii: Distance of the k-th nearest, or of the last one where there are fewer, [num_points].
        num_points: How many distinct points are that near, [num_points].
        num_rows: How many rows these are, [num_points].
    """

    radii: Floats
    num_points: Whole
    num_rows: Whole


@dataclass(frozen=True)
class _Side:
    """One set: how often it has each distinct vector and each point, and what of it is near each point."""

    counts: Whole
    of_points: Whole
    around: Neighbourhood | None

    @property
    def size(self) -> int:
        return int(self.counts.sum())


class Pair:
    """Two sets of vectors, whose divergence can be estimated for any order, and for rows drawn from them.

    Args:
        a: [num_a, d]; equal rows are one vector that occurs again.
        b: [num_b, d].
        k: Neighbours.
        spare: So many times k neighbours are found, for rows that are drawn anew; 1 is enough for the rows themselves.
        progress: Show a bar.

    Raises:
        DataError: The vectors cannot be compared.
        UserError: k is not positive, or most rows of a set occur once and are not more than k.
    """

    def __init__(
        self, a: NDArray[np.floating], b: NDArray[np.floating], k: int = 40, spare: int = 1, progress: bool = False
    ) -> None:
        if k < 1:
            raise UserError(f"there is no {k}-th neighbour: give at least 1", about="k")
        self.k = k
        self.rows: Distinct = distinct(a, b)
        single = ~self.rows.repeats
        sizes = self.rows.counts[:, single].sum(1)
        for side, num_single, num_rows in zip("AB", sizes, self.rows.counts.sum(1), strict=True):
            if num_single <= k and 2 * num_single > num_rows:
                raise UserError(
                    f"{side} has {num_rows} rows, of which {num_single} occur once: too few for the distance of the "
                    f"{k}-th neighbour; give more texts, or a smaller k (--estimate.k)"
                )
        self.is_point = single if sizes.min() > k else np.zeros_like(single)  # fewer have no k-th neighbour
        self.points = self.rows.vectors[self.is_point]
        self.is_first = self.rows.counts[0, self.is_point] > 0
        self.near = neighbours(self.points, self.is_first, k * spare, progress) if len(self.points) else None
        self.dimension = 0.0  # of the points
        if self.near is not None:
            self.dimension = intrinsic_dimension(self.near, self.is_first, k, self.points.shape[1])

    def divergences(
        self, alpha: float, counts: Whole | None = None, relabelled: bool = False
    ) -> tuple[OneSidedDivergence, OneSidedDivergence]:
        """Return D_α(A‖B) and D_α(B‖A).

        Args:
            alpha: Order, at least 1.
            counts: How often each distinct vector is in either set, [2, num_distinct], in place of the sets' own.
            relabelled: Whether ``counts`` give points to another set: then a list ends where it may lack one.

        Raises:
            UserError: See :func:`check_order`.
        """
        check_order(alpha, self.k)
        near = self.near
        if near is not None and relabelled:
            ended = np.where(near.distances <= near.complete[:, None], near.distances, np.inf)
            near = replace(near, distances=ended)
        a, b = (self._side(own, near) for own in (self.rows.counts if counts is None else counts))
        return self._one_sided(alpha, a, b), self._one_sided(alpha, b, a)

    def _side(self, counts: Whole, near: Neighbours | None) -> _Side:
        of_points = counts[self.is_point]
        return _Side(counts, of_points, None if near is None else _neighbourhood(near, of_points, self.k))

    def _one_sided(self, alpha: float, p: _Side, q: _Side) -> OneSidedDivergence:
        is_repeated = ~self.is_point & (p.counts > 0)
        in_p, in_q = p.counts[is_repeated], q.counts[is_repeated]
        log_shares = np.log(in_p / p.size)
        log_ratios = log_shares - np.log(np.maximum(in_q, _UNSEEN) / q.size)
        return OneSidedDivergence(
            alpha,
            repeated=_moment(alpha, log_shares, log_ratios),
            points=self._of_points(alpha, p, q),
            share=float(p.of_points.sum() / p.size),
            only=float(in_p[in_q == 0].sum() / p.size),
        )

    def _of_points(self, alpha: float, p: _Side, q: _Side) -> float:
        """The part of the points."""
        nothing, order = np.zeros(0), alpha - 1
        if p.around is None or q.around is None or not p.of_points.any() or not q.of_points.any():
            return _moment(alpha, nothing, nothing)
        has_density = (p.around.num_points > order) & (p.around.radii > 0) & (q.around.radii > 0)
        used = (p.of_points > 0) & has_density & (q.around.num_points > 0)
        k_p, k_q = p.around.num_points[used], q.around.num_points[used]
        log_density_p = np.log(p.around.num_rows[used] / k_p) - self.dimension * np.log(p.around.radii[used])
        log_density_q = np.log(q.around.num_rows[used] / k_q) - self.dimension * np.log(q.around.radii[used])
        others = p.size * (1 - 1 / p.of_points.sum())  # a point is none of its own neighbours
        log_ratios = log_density_p - log_density_q + np.log(q.size / others)
        if alpha == 1:
            log_ratios += digamma(k_p) - digamma(k_q)
        else:
            log_ratios += (gammaln(k_p) - gammaln(k_p - order) + gammaln(k_q) - gammaln(k_q + order)) / order
        share = p.of_points.sum() / p.size
        return _moment(alpha, np.log(p.of_points[used] / p.of_points[used].sum() * share), log_ratios)


def _neighbourhood(near: Neighbours, of_points: Whole, k: int) -> Neighbourhood:
    """The k nearest of the points that one set has, around each point."""
    rows = np.where(np.isfinite(near.distances), of_points[near.places], 0)
    is_among = (rows > 0) & (np.cumsum(rows > 0, 1) <= k)
    return Neighbourhood(np.where(is_among, near.distances, 0).max(1), is_among.sum(1), (rows * is_among).sum(1))


def _moment(alpha: float, log_shares: Floats, log_ratios: Floats) -> float:
    """log E[ratio^(α−1)]; at α = 1 E[log ratio]."""
    if alpha == 1:
        return float(np.exp(log_shares) @ log_ratios)
    return float(logsumexp(log_shares + (alpha - 1) * log_ratios)) if len(log_shares) else -np.inf


def of_points_alone(divergences: Sequence[OneSidedDivergence]) -> Floats:
    """Return D_α(P‖Q) and D_α(Q‖P) of the points alone, each set's scaled to one distribution, [2]; may be below 0."""
    found = []
    for own, other in (divergences, divergences[::-1]):
        if own.alpha == 1:
            found.append(own.points / own.share - np.log(own.share / other.share))
        else:
            scale = own.alpha * np.log(own.share) + (1 - own.alpha) * np.log(other.share)
            found.append((own.points - scale) / (own.alpha - 1))
    return np.array(found)


def check_order(alpha: float, k: int) -> None:
    """Refuse orders for which the estimator is not defined.

    Raises:
        UserError: α is below 1, or the factor that makes the estimate right on average is infinite.
    """
    if not alpha >= 1 or not np.isfinite(alpha):
        raise UserError(f"there is no estimate of order {alpha:g}: give a finite order of at least 1", about="alpha")
    if alpha >= k + 1:
        raise UserError(
            f"the estimate by {k} neighbours exists for orders below {k + 1} alone, and is steady up to {k / 2:g}: for "
            f"order {alpha:g} give at least {int(np.ceil(2 * alpha))} neighbours",
            about="alpha",
        )
