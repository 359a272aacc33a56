"""Batches of similar lengths under a budget of padded positions, for training without a privacy claim."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np


class BucketedBatches:
    """Shuffled batches of items of similar length.

    Items are shuffled, sorted by length and cut, and then the batches are shuffled. Batches depend on (seed, epoch)
    alone; every epoch has equally many, and each item once.

    Args:
        lengths: Length of each item.
        ties: Sorts items of equal length, such as by the length of their source; null leaves them shuffled.
        budget: Most padded positions of a batch (items times longest length), over all ranks; an item that is longer
            makes a batch of its own.
        seed: Seed of the permutations; use the same one on every rank.
    """

    def __init__(self, lengths: Sequence[int], budget: int, seed: int, ties: Sequence[int] | None = None) -> None:
        self.lengths = np.asarray(lengths)
        self.ties = np.zeros_like(self.lengths) if ties is None else np.asarray(ties)
        self.seed = seed
        self._epoch = 0
        self._start = 0
        starts, widest = [0], 0
        for position, length in enumerate(np.sort(self.lengths).tolist()):
            widest = max(widest, length)
            if position > starts[-1] and (position + 1 - starts[-1]) * widest > budget:
                starts.append(position)
                widest = length
        self._bounds = [*starts, len(self.lengths)]

    def __len__(self) -> int:
        """Batches of an epoch."""
        return len(self._bounds) - 1

    def set_epoch(self, epoch: int) -> None:
        """Choose the permutations."""
        self._epoch = epoch

    def start_at(self, batch_index: int) -> None:
        """Skip batches of the next iteration only."""
        self._start = batch_index

    def size(self, batch_index: int) -> int:
        """Nothing that a parser needs: its batches carry their own divisor."""
        return 1

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the items of every batch, over all ranks."""
        start, self._start = self._start, 0
        random = np.random.default_rng([self.seed, self._epoch])
        order = random.permutation(len(self.lengths))
        order = order[np.lexsort((self.ties[order], self.lengths[order]))]  # stable
        for batch in random.permutation(len(self))[start:].tolist():
            yield order[self._bounds[batch] : self._bounds[batch + 1]].tolist()
