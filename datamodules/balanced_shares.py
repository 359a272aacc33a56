"""Split the units of a logical batch over ranks, so that all ranks have about as much to compute."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from datamodules.step_sampler import EpochBatches


class BalancedShares:
    """This rank's share of each batch: a run of the batch's units, sorted by cost.

    Ranks meet once a step, so a step takes as long as its slowest rank. Were each rank to draw units for itself, their
    numbers would differ, and a rank's few units would be padded to its longest. Here all ranks draw the same batch and
    each keeps a run of it; runs are disjoint, cover the batch, hold units of similar length and cost about the same
    (``benchmarks.scaling`` measures both ways).

    *Privacy.* The union of the shares is the batch as ``batches`` drew it, each unit in exactly one share, and the
    clipped sum over ranks does not depend on who computes what. So splitting changes nothing of the mechanism,
    provided that all ranks draw the same batches: give them one secret (see :func:`assert_one_secret`).

    Args:
        batches: Draws whole batches, the same on every rank.
        costs: What each unit costs: tokens of its longest row times its rows, whole numbers above 0, [num_units].
        rank: Rank of this process.
        world_size: Number of processes.
    """

    def __init__(self, batches: EpochBatches, costs: ArrayLike, rank: int, world_size: int) -> None:
        self.batches = batches
        self.rank = rank
        self.world_size = world_size
        self._costs = np.asarray(costs)

    def __len__(self) -> int:
        """Batches of an epoch."""
        return len(self.batches)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration."""
        self.batches.set_epoch(epoch)

    def start_at(self, batch_index: int) -> None:
        """Skip batches of the next iteration only."""
        self.batches.start_at(batch_index)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield this rank's share of every batch."""
        for batch in self.batches:
            yield share(np.asarray(batch, dtype=np.int64), self._costs, self.rank, self.world_size).tolist()


def share(units: NDArray[np.int64], costs: NDArray[np.int64], rank: int, world_size: int) -> NDArray[np.int64]:
    """The units of ``rank``: a run of the units sorted by cost, the dearest first.

    Rank 0 gets few long units, the last rank many short ones. Where the runs end makes the dearest share as cheap as a
    cut into runs can, a share of n units costing n times its dearest unit, as padding makes it.
    """
    ordered = units[np.argsort(-costs[units], kind="stable")]
    sorted_costs = costs[ordered].tolist()
    low, high = 0, sum(sorted_costs[:1]) * len(ordered)
    while low < high:  # the least bound that suffices; whole numbers, so that every rank finds the same
        middle = (low + high) // 2
        if len(_ends(sorted_costs, middle)) <= world_size:
            high = middle
        else:
            low = middle + 1
    ends = [0, *_ends(sorted_costs, high)]
    if rank + 1 >= len(ends):
        return ordered[:0]
    return ordered[ends[rank] : ends[rank + 1]]


def _ends(sorted_costs: list[int], bound: int) -> list[int]:
    """Where runs end that are as long as they can be under the bound; a single unit may pass it."""
    ends = [0]
    while ends[-1] < len(sorted_costs):
        start = ends[-1]
        ends.append(min(start + max(1, bound // sorted_costs[start]), len(sorted_costs)))
    return ends[1:]
