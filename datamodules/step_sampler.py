"""A rank-aware sampler that names every batch by its optimiser step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from torch.utils.data import DistributedSampler


class SampledUnits(NamedTuple):
    """Which units make up one logical batch on one rank.

    Attributes:
        step: Optimiser step of the batch, counted from the start of training.
        indices: Unit indices of this rank; empty if none was drawn.
        expected_num_units: Divisor of the summed gradient, over all ranks.
    """

    step: int
    indices: list[int]
    expected_num_units: float


class EpochBatches(Protocol):
    """Draws the batches of an epoch, for instance ``doppel.privacy.sampling.PoissonSampler``."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[list[int]]: ...

    def set_epoch(self, epoch: int) -> None: ...

    def start_at(self, batch_index: int) -> None: ...


class StepSampler(DistributedSampler):
    """Continues the draws of ``batches`` at the step that the trainer has reached.

    An iteration yields one epoch's worth of batches, beginning at ``first_step()``: the state of the sampler
    is the trainer's ``global_step`` and nothing else. So a resumed run, an iterator made ahead of time and an
    epoch cut short all see batch ``s`` at step ``s``. (Lightning calls ``set_epoch`` only on
    ``loader.sampler``, and makes the first iterator before it does so.)

    Being a ``DistributedSampler``, it is left alone by Lightning whatever ``use_distributed_sampler`` says.
    Use it as ``DataLoader(dataset, sampler=..., batch_size=None)``.

    Args:
        batches: Draws the batches of an epoch, on this rank.
        first_step: Returns the step at which an iteration begins, such as ``lambda: trainer.global_step``.
        expected_num_units: Divisor of the gradient for a given batch index of an epoch.
    """

    def __init__(
        self,
        batches: EpochBatches,
        first_step: Callable[[], int],
        expected_num_units: Callable[[int], float],
    ) -> None:
        # The initialiser of DistributedSampler would ask for a process group and a dataset.
        self.batches = batches
        self.first_step = first_step
        self.expected_num_units = expected_num_units

    def __len__(self) -> int:
        """Batches of an epoch."""
        return len(self.batches)

    def set_epoch(self, epoch: int) -> None:
        """Does nothing: the epoch follows from the step."""

    def __iter__(self) -> Iterator[SampledUnits]:  # type: ignore[override]
        """Yield ``len(self)`` batches from the current step on."""
        step = self.first_step()
        last = step + len(self)
        while step < last:
            epoch, start = divmod(step, len(self))
            self.batches.set_epoch(epoch)
            self.batches.start_at(start)
            for indices in self.batches:
                if step == last:
                    return
                yield SampledUnits(step, indices, self.expected_num_units(step % len(self)))
                step += 1
