"""Where the time of a training step goes."""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from torch.utils.hooks import RemovableHandle

from callbacks.differential_privacy import DifferentialPrivacy
from doppel.files import write_json
from doppel.phases import PHASES, PhaseClock, phase, set_clock


class StepTimer(Callback):
    """Measures data loading, forward, backward, clipping, reduction, noise and optimiser of every step, on rank 0.

    The seconds since the last log are logged as means over steps, and the medians of the fit are written to
    ``step_times.json`` in the run folder. The sum over ranks overlaps the clipped sum, so ``reduce`` is what is left to
    wait for, and on rank 0 it includes waiting for slower ranks. ``total`` also holds what is between the phases.

    *Privacy.* How long a step takes tells of the texts that were sampled and of their number. Of a private training the
    series are therefore named ``private/time_…`` and, like the file, are for those who may see the data. The callback
    is off unless it is asked for.

    Args:
        num_warmup_steps: First steps that the medians leave out.
    """

    def __init__(self, num_warmup_steps: int = 3) -> None:
        self.num_warmup_steps = num_warmup_steps
        self._clock: PhaseClock | None = None
        self._steps: list[dict[str, float]] = []
        self._num_logged = 0
        self._last_end = 0.0
        self._optimizer = ExitStack()
        self._handles: list[RemovableHandle] = []

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock."""
        self._steps, self._num_logged = [], 0
        if trainer.is_global_zero:
            self._clock = PhaseClock(pl_module.device)
            set_clock(self._clock)
            for optimizer in trainer.optimizers:  # its step alone: Lightning's also runs hooks, the noise among them
                enter = optimizer.register_step_pre_hook(lambda *_: self._optimizer.enter_context(phase("optimizer")))
                self._handles += [enter, optimizer.register_step_post_hook(lambda *_: self._optimizer.close())]
        self._last_end = time.perf_counter()

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, i: int) -> None:
        """The batch has arrived."""
        if self._clock is not None:
            self._clock.add("data", time.perf_counter() - self._last_end)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Read the clock."""
        if self._clock is None:
            return
        seconds: dict[str, float] = {str(n): s for n, s in self._clock.take().items()}  # waits for the device
        now = time.perf_counter()
        self._steps.append({**seconds, "total": now - self._last_end})
        self._last_end = now
        if trainer.global_step % trainer.log_every_n_steps == 0:  # type: ignore[attr-defined]
            recent = self._steps[self._num_logged :]
            self._num_logged = len(self._steps)
            prefix = "private/time_" if self._is_private(trainer) else "time/"
            means = {prefix + name: statistics.fmean(step[name] for step in recent) for name in (*PHASES, "total")}
            for logger in trainer.loggers:
                logger.log_metrics(means, step=trainer.global_step)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the medians."""
        if self._clock is None:
            return
        self._stop()
        measured = self._steps[self.num_warmup_steps :] or self._steps
        if measured:
            summary = {
                "num_steps": len(measured),
                "num_ranks": trainer.world_size,
                "device": str(pl_module.device),
                "is_private": self._is_private(trainer),
                "median_seconds": {n: statistics.median(s[n] for s in measured) for n in (*PHASES, "total")},
            }
            write_json(Path(trainer.default_root_dir) / "step_times.json", summary)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Stop the clock."""
        self._stop()

    def _stop(self) -> None:
        set_clock(None)
        self._clock = None
        while self._handles:
            self._handles.pop().remove()

    @staticmethod
    def _is_private(trainer: Any) -> bool:
        return any(isinstance(callback, DifferentialPrivacy) for callback in trainer.callbacks)
