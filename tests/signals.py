"""A callback that stops a run as a scheduler does."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import time
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback


class SignalAt(Callback):
    """Sends signals while a step is computed, as a scheduler does: to this process, and to its DataLoader workers.

    Args:
        step: The step, counted from 0.
        name: Name of the signal.
        rank: The rank that is signalled.
    """

    def __init__(self, step: int, name: str = "SIGUSR1", rank: int = 0) -> None:
        self.step = step
        self.number = signal.Signals[name]
        self.rank = rank
        self.num_workers = 0

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step == self.step and trainer.global_rank == self.rank:
            workers = multiprocessing.active_children() if trainer.world_size == 1 else []
            self.num_workers = len(workers)
            for name in (self.number.name, "SIGTERM") if workers else ():
                subprocess.run(["kill", "-s", name.removeprefix("SIG"), *[str(worker.pid) for worker in workers]])
                time.sleep(0.2)  # for a dead worker to be missed
            os.kill(os.getpid(), self.number)
