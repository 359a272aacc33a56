"""A batch is a function of the step: what a data loader of Lightning needs to follow the trainer's steps."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

from torch.utils.data import DataLoader, Dataset, DistributedSampler

Batch = TypeVar("Batch", covariant=True)


class UnitSampler(Protocol):
    """Says which units make up the batch of a step, such as :class:`doppel.privacy.sampling.PoissonSampler`."""

    def __len__(self) -> int:
        """Steps of an epoch."""

    def units_at(self, step: int) -> list[int]:
        """Units of the batch over all ranks: a function of the step, and the same on every rank."""


class StepBatches(Dataset[Batch]):
    """Item s is what this rank computes at step s.

    Args:
        sampler: Draws the units of a step.
        make: Makes a batch of a step and all its units.
    """

    def __init__(self, sampler: UnitSampler, make: Callable[[int, list[int]], Batch]) -> None:
        self.sampler = sampler
        self.make = make

    def __getitem__(self, step: int) -> Batch:
        """The batch of a step."""
        return self.make(step, self.sampler.units_at(step))


class RangeSampler(DistributedSampler):
    """Yields the numbers of a range, which is asked for anew at each iteration.

    Being a ``DistributedSampler``, it is left alone by Lightning whatever ``use_distributed_sampler`` says (its own one
    repeats items so that all ranks have equally many, which would count some of them twice).

    Args:
        numbers: Returns the range; its length does not change.
    """

    def __init__(self, numbers: Callable[[], range]) -> None:
        # The initialiser of DistributedSampler would ask for a process group and a dataset.
        self.numbers = numbers

    def __len__(self) -> int:
        """Length of the range."""
        return len(self.numbers())

    def __iter__(self) -> Iterator[int]:  # type: ignore[override]
        """Yield the numbers."""
        yield from self.numbers()


class StepDataLoader(DataLoader[Batch]):
    """A loader that yields an epoch's worth of batches from the step on that the trainer has reached.

    The state of the sampler is the trainer's ``global_step`` and nothing else. So a resumed run, an iterator made ahead
    of time and an epoch cut short all see batch s at step s. It offers ``state_dict`` and ``load_state_dict`` to tell
    Lightning that it may resume within an epoch.

    A secret in the data set is not pickled, so worker processes are forked, as they are by default on Linux.

    Args:
        batches: Batches by their step.
        first_step: Returns the step at which an iteration begins, such as ``lambda: trainer.global_step``.
        num_workers: Worker processes.
    """

    def __init__(self, batches: StepBatches[Batch], first_step: Callable[[], int], num_workers: int = 0) -> None:
        sampler = RangeSampler(lambda: range(first_step(), first_step() + len(batches.sampler)))
        super().__init__(
            batches, sampler=sampler, batch_size=None, num_workers=num_workers, worker_init_fn=_ignore_signals
        )

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the trainer's step is the whole state."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing to restore."""


def _ignore_signals(worker: int) -> None:
    """Let the signals that stop a run pass by a worker process.

    A cluster sends them to every process of a job. A worker that died of one would take the training down in the middle
    of a step; left alone, it ends with the process that it works for.
    """
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
