"""Which candidates of a population are chosen by their noisy votes.

Formal guarantees:
    Nothing here sees private data. Candidates come from a generator, votes from a Gaussian mechanism in the ledger, and
    what is chosen by both is post-processing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from doppel.resampling import draw

Floats = NDArray[np.float64]
#: How candidates are chosen: those with most votes, or each as often as its share of them says.
Way = Literal["rank", "probability"]


def largest_remainder(shares: Sequence[float], total: int) -> list[int]:
    """Round shares to whole numbers of a given sum, by the method of largest remainders.

    Args:
        shares: At least 0 each; all equal where none is above 0.
        total: Sum of the result.
    """
    given = np.maximum(np.asarray(shares, dtype=np.float64), 0.0)
    if not given.any():
        given = np.ones_like(given)
    exact = given / given.sum() * total
    whole = np.floor(exact).astype(int)
    for place in np.argsort(whole - exact, kind="stable")[: total - int(whole.sum())]:
        whole[place] += 1
    return whole.tolist()


def choose(votes: Sequence[float], num: int, way: Way, threshold: float = 0.0, seed: int = 0) -> list[int]:
    """Return places of the candidates that go on.

    Args:
        votes: Noisy votes of each candidate.
        num: How many; where there are fewer candidates, some are taken again.
        way: ``rank`` takes those with most votes; ``probability`` takes each as often as its share of the votes above
            the threshold says, rounded up or down (systematic sampling), so that one may be taken several times.
        threshold: H: votes up to it count for nothing, and it is taken off the others. It does not change ranks.
        seed: Of the one random number of a draw by probability.

    Returns:
        Places, those with most votes first by rank, else rising.
    """
    given = np.asarray(votes, dtype=np.float64)
    if way == "rank":
        return np.resize(np.argsort(-given, kind="stable"), num).tolist()
    above = np.maximum(given - threshold, 0.0)
    weights = above / above.sum() if above.any() else np.full(len(given), 1 / len(given))
    return draw(weights, num, seed)


def spread(shares: Sequence[float], members: Sequence[Sequence[int]], num: int, threshold: float = 0.0) -> list[int]:
    """Return places of the candidates that go on where votes are of clusters of them.

    Args:
        shares: Noisy votes of each cluster.
        members: Candidates of each cluster, those nearest to its centre first; at least one.
        num: How many are chosen: for each cluster by its share, and of it the nearest first. Where more are due than it
            has, it begins again.
        threshold: As of :func:`choose`.
    """
    due = largest_remainder([share - threshold for share in shares], num)
    return [own[k % len(own)] for own, wanted in zip(members, due, strict=True) for k in range(wanted)]
