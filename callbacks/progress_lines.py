"""Progress of trainings and samplings in logs."""

from __future__ import annotations

import math
import time
from datetime import timedelta
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.utilities import rank_zero_info

from callbacks.differential_privacy import DifferentialPrivacy
from datamodules.data_module import may_be_told


class ProgressLines(ProgressBar):
    """A line every ``trainer.log_every_n_steps`` steps; the command line takes it where there is no terminal.

    It names the step, the metrics that a bar would show, the ε that is spent, and the time left, in tens of
    seconds, by the mean of all steps so far.

    *Privacy.* Metrics named ``private/…`` are left out, whatever else is allowed to log them; of a private training
    nothing but ε and the step then remains. Batches of private rows have no line, for they count these rows: neither
    those of a validation nor those of a ``predict`` (:func:`~datamodules.data_module.may_be_told`).
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_enabled = True

    def disable(self) -> None:
        """Be silent, on ranks other than 0."""
        self._is_enabled = False

    def enable(self) -> None:
        """Speak."""
        self._is_enabled = True

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock."""
        self._started, self._first_step = time.perf_counter(), trainer.global_step
        self._num_steps = trainer.estimated_stepping_batches

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """A line, if it is time for one."""
        step, every = trainer.global_step, trainer.log_every_n_steps  # type: ignore[attr-defined]
        if not self._is_enabled or (step % max(every, 1) and step < self._num_steps):
            return
        metrics = [
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in self.get_metrics(trainer, pl_module).items()
            if not name.startswith("private/") and name != "v_num"
        ]
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, DifferentialPrivacy) and callback.spent is not None:
                metrics.append(f"ε {callback.spent:.3f} of {callback.privacy.target_epsilon:g}")
        left = (self._num_steps - step) * (time.perf_counter() - self._started) / max(step - self._first_step, 1)
        self._say(f"step {step}/{self._num_steps}", metrics, left)

    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the counts."""
        self._started, self._num_samples = time.perf_counter(), 0

    def on_predict_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        """A line for a batch."""
        num_batches = sum(trainer.num_predict_batches)
        tells = may_be_told(trainer.datamodule)  # type: ignore[attr-defined]
        if self._is_enabled and tells and outputs and math.isfinite(num_batches):
            self._num_samples += len(outputs)
            seconds = time.perf_counter() - self._started
            left = (num_batches - batch_idx - 1) * seconds / (batch_idx + 1)
            rate = f"{self._num_samples / seconds:.1f} samples a second"
            self._say(f"batch {batch_idx + 1}/{num_batches}", [rate], left)

    @staticmethod
    def _say(where: str, figures: list[str], seconds_left: float) -> None:
        left = timedelta(seconds=10 * math.ceil(seconds_left / 10))
        rank_zero_info(", ".join([where, *figures, f"{left} left"]))
