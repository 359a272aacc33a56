"""Split the units of a logical batch over ranks, so that all ranks have about as much to compute."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def share(units: Sequence[int], costs: NDArray[np.int64], rank: int, world_size: int) -> list[int]:
    """Return the units of ``rank``: a run of the batch's units sorted by cost, the dearest first.

    Ranks meet once a step, so a step takes as long as its slowest rank. Were each rank to draw units for itself, their
    numbers would differ, and a rank's few units would be padded to its longest. Here all ranks draw the same batch and
    each keeps a run of it; runs hold units of similar length and cost about the same (docs/performance.md has
    both ways). Rank 0 gets few long units, the last rank many short ones. Where the runs end makes the dearest share as
    cheap as a cut into runs can, a share of n units costing n times its dearest unit, as padding makes it.

    Formal guarantees:
        The shares are disjoint and their union is the batch as it was drawn. The clipped sum over ranks does not
        depend on who computes what. So splitting changes nothing of the mechanism, provided that all ranks draw the
        same batches from one secret; the data module compares their fingerprints.

    Args:
        units: Units of the batch.
        costs: What each unit costs: tokens of its longest row times its rows, whole numbers above 0, [num_units].
        rank: Rank of this process.
        world_size: Number of processes.
    """
    drawn = np.asarray(units, dtype=np.int64)
    ordered = drawn[np.argsort(-costs[drawn], kind="stable")]
    sorted_costs = costs[ordered].tolist()
    low, high = 0, sum(sorted_costs[:1]) * len(ordered)
    while low < high:  # the least bound that suffices; whole numbers, so that every rank finds the same
        middle = (low + high) // 2
        if len(_ends(sorted_costs, middle)) <= world_size:
            high = middle
        else:
            low = middle + 1
    ends = [0, *_ends(sorted_costs, high)]
    mine: list[int] = ordered[ends[rank] : ends[rank + 1]].tolist() if rank + 1 < len(ends) else []
    return mine


def _ends(sorted_costs: list[int], bound: int) -> list[int]:
    """Where runs end that are as long as they can be under the bound; a single unit may pass it."""
    ends = [0]
    while ends[-1] < len(sorted_costs):
        start = ends[-1]
        ends.append(min(start + max(1, bound // sorted_costs[start]), len(sorted_costs)))
    return ends[1:]
