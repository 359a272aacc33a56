"""Which candidates of a population are chosen by their noisy votes.

Formal guarantees:
    Nothing here sees private data. Candidates come from a generator, votes from a Gaussian mechanism in the ledger, and
    what is chosen by both is post-processing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


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


def choose(votes: Sequence[float], num: int) -> list[int]:
    """Return places of the candidates with most votes, in their order.

    Args:
        votes: Noisy votes of each candidate.
        num: How many; where there are fewer candidates, some are taken again.
    """
    order = np.argsort(-np.asarray(votes, dtype=np.float64), kind="stable")
    return np.resize(order, num).tolist()


def spread(shares: Sequence[float], members: Sequence[Sequence[int]], num: int) -> list[int]:
    """Return places of the candidates that go on where votes are of clusters of them.

    Args:
        shares: Noisy votes of each cluster.
        members: Candidates of each cluster, those nearest to its centre first; at least one.
        num: How many are chosen: for each cluster by its share, and of it the nearest first. Where more are due than it
            has, it begins again.
    """
    due = largest_remainder(shares, num)
    return [own[k % len(own)] for own, wanted in zip(members, due, strict=True) for k in range(wanted)]
