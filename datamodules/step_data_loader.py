"""The training loader: logical batches from the trainer's step on."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader, Dataset

from datamodules.batch import LogicalBatch
from datamodules.step_sampler import EpochBatches, StepSampler


def ignore_signals(worker: int) -> None:
    """Let the signals that stop a run pass by a worker process.

    A cluster sends them to every process of a job. A worker that died of one would take the training down in the middle
    of a step; left alone, it ends with the process that it works for.
    """
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


class StepDataLoader(DataLoader[LogicalBatch]):
    """A loader of logical batches that goes on where the trainer is.

    It offers ``state_dict`` and ``load_state_dict`` to tell Lightning that it may resume within an epoch;
    there is nothing to keep, for :class:`StepSampler` follows ``global_step``.

    Args:
        dataset: Makes a logical batch of sampled units.
        batches: Draws the units of an epoch's batches, on this rank.
        first_step: Returns the step at which an iteration begins.
        expected_num_units: Divisor of the gradient for a given batch index of an epoch.
        num_workers: Worker processes.
    """

    def __init__(
        self,
        dataset: Dataset[LogicalBatch],
        batches: EpochBatches,
        first_step: Callable[[], int],
        expected_num_units: Callable[[int], float],
        num_workers: int = 0,
    ) -> None:
        sampler = StepSampler(batches, first_step, expected_num_units)
        super().__init__(
            dataset, sampler=sampler, batch_size=None, num_workers=num_workers, worker_init_fn=ignore_signals
        )

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the trainer's step is the whole state."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing to restore."""
