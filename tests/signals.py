"""A callback that stops a run as a scheduler does."""

from __future__ import annotations

import os
import signal
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback


class SignalAt(Callback):
    """Sends a signal while a step is computed, as a scheduler does.

    Args:
        step: The step, counted from 0.
        name: Name of the signal.
        rank: The rank that is signalled.
    """

    def __init__(self, step: int, name: str = "SIGUSR1", rank: int = 0) -> None:
        self.step = step
        self.number = signal.Signals[name]
        self.rank = rank

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step == self.step and trainer.global_rank == self.rank:
            os.kill(os.getpid(), self.number)
