"""Shuffled batches, for training without a privacy claim; nothing is dropped."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class ShuffledBatches:
    """Batches of a fixed size; the last one of an epoch may be smaller.

    The batch of a step, over all ranks, depends on (seed, step) alone; every epoch has each unit once.
    """

    def __init__(self, num_units: int, batch_size: int, seed: int) -> None:
        self.num_units = num_units
        self.units_per_batch = min(batch_size, num_units)
        self.seed = seed
        self._epoch, self._order = -1, np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        """Steps of an epoch."""
        return math.ceil(self.num_units / self.units_per_batch)

    def units_at(self, step: int) -> list[int]:
        """Return the units of a step's batch."""
        epoch, batch = divmod(step, len(self))
        if epoch != self._epoch:
            self._epoch, self._order = epoch, np.random.default_rng([self.seed, epoch]).permutation(self.num_units)
        units: list[int] = self._order[batch * self.units_per_batch : (batch + 1) * self.units_per_batch].tolist()
        return units


class BucketedBatches:
    """Batches of items of similar length under a budget of padded positions.

    Items are shuffled, sorted by length and cut, and then the batches are shuffled. The batch of a step depends on
    (seed, step) alone; every epoch has equally many batches, and each item once.

    Args:
        lengths: Length of each item.
        budget: Most padded positions of a batch (items times longest length), over all ranks; an item that is longer
            makes a batch of its own.
        seed: Seed of the permutations; use the same one on every rank.
        ties: Sorts items of equal length, such as by the length of their source; None leaves them shuffled.
    """

    def __init__(self, lengths: Sequence[int], budget: int, seed: int, ties: Sequence[int] | None = None) -> None:
        self.lengths = np.asarray(lengths)
        self.ties = np.zeros_like(self.lengths) if ties is None else np.asarray(ties)
        self.seed = seed
        starts, widest = [0], 0
        for position, length in enumerate(np.sort(self.lengths).tolist()):
            widest = max(widest, length)
            if position > starts[-1] and (position + 1 - starts[-1]) * widest > budget:
                starts.append(position)
                widest = length
        self._bounds = [*starts, len(self.lengths)]
        self._epoch = -1
        self._items: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._batches: NDArray[np.int64] = self._items

    def __len__(self) -> int:
        """Steps of an epoch."""
        return len(self._bounds) - 1

    def units_at(self, step: int) -> list[int]:
        """Return the items of a step's batch."""
        epoch, number = divmod(step, len(self))
        if epoch != self._epoch:
            self._epoch, random = epoch, np.random.default_rng([self.seed, epoch])
            order = random.permutation(len(self.lengths))
            self._items = order[np.lexsort((self.ties[order], self.lengths[order]))]  # stable
            self._batches = random.permutation(len(self))
        batch = self._batches[number]
        items: list[int] = self._items[self._bounds[batch] : self._bounds[batch + 1]].tolist()
        return items
