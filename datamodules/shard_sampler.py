"""Fixed shards of ready-made batches, for validation, test and prediction."""

from __future__ import annotations

from collections.abc import Iterator

from torch.utils.data import DistributedSampler


class ShardSampler(DistributedSampler):
    """Every ``world_size``-th item, in order, none repeated.

    Being a ``DistributedSampler``, it is left alone by Lightning whatever ``use_distributed_sampler`` says
    (its own one repeats items so that all ranks have equally many, which would count some of them twice).

    Args:
        num_items: Items over all ranks.
        rank: Rank of this process.
        world_size: Number of processes.
    """

    def __init__(self, num_items: int, rank: int = 0, world_size: int = 1) -> None:
        # The initialiser of DistributedSampler would ask for a process group and a dataset.
        self.items = range(rank, num_items, world_size)

    def __len__(self) -> int:
        """Items of this rank."""
        return len(self.items)

    def set_epoch(self, epoch: int) -> None:
        """Does nothing: the order is fixed."""

    def __iter__(self) -> Iterator[int]:  # type: ignore[override]
        """Yield the indices of this rank's items."""
        return iter(self.items)
