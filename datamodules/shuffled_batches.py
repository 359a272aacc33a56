"""Shuffled batches of a fixed size, for training without a privacy claim."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np


class ShuffledBatches:
    """Fixed-size shuffled batches for runs that make no privacy claim; nothing is dropped.

    Batch ``b`` of epoch ``e`` is a pure function of (seed, e, b); rank r takes every ``world_size``-th of its
    units. All ranks have the same number of batches, the last of which may be empty on some ranks.

    Args:
        num_units: Number of units, or of any items.
        batch_size: Units in a batch, over all ranks.
        seed: Seed of the permutations; use the same one on every rank.
        rank: Rank of this process.
        world_size: Number of processes.
    """

    def __init__(self, num_units: int, batch_size: int, seed: int, rank: int = 0, world_size: int = 1) -> None:
        self.num_units = num_units
        self.units_per_batch = min(batch_size, num_units)
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self._epoch = 0
        self._start = 0

    def __len__(self) -> int:
        """Batches of an epoch."""
        return math.ceil(self.num_units / self.units_per_batch)

    def set_epoch(self, epoch: int) -> None:
        """Choose the permutation."""
        self._epoch = epoch

    def start_at(self, batch_index: int) -> None:
        """Skip batches of the next iteration only."""
        self._start = batch_index

    def size(self, batch_index: int) -> int:
        """Units in a batch over all ranks."""
        return min(self.units_per_batch, self.num_units - batch_index * self.units_per_batch)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield this rank's part of every batch."""
        start, self._start = self._start, 0
        order = np.random.default_rng([self.seed, self._epoch]).permutation(self.num_units)
        for index in range(start, len(self)):
            batch = order[index * self.units_per_batch : (index + 1) * self.units_per_batch]
            yield batch[self.rank :: self.world_size].tolist()
