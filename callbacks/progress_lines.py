"""Progress of trainings and samplings: lines in a log, Lightning's bar in a terminal."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ProgressBar, TQDMProgressBar
from lightning.pytorch.utilities import rank_zero_info

from callbacks.differential_privacy import DifferentialPrivacy
from datamodules.private_data import is_disclosable

#: Seconds after which a step has a line in any case.
_LONG = 60.0


class _WhatMayBeShown(ProgressBar):
    """The ε that is spent of its target, ahead of the metrics; none that is named ``private/…``."""

    def get_metrics(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> dict[str, Any]:
        """Nor the name of the logger's run."""
        spent = {}
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, DifferentialPrivacy) and callback.spent is not None:
                of_target = f"{callback.spent:.2f} of {callback.privacy.target_epsilon:g}"
                spent["ε"] = "∞, NOT PRIVATE" if math.isinf(callback.spent) else of_target
        metrics = super().get_metrics(trainer, pl_module).items()
        return spent | {name: value for name, value in metrics if not name.startswith("private/") and name != "v_num"}


class ProgressInPlace(_WhatMayBeShown, TQDMProgressBar):
    """Lightning's bar."""


class ProgressLines(_WhatMayBeShown):
    """A line every ``trainer.log_every_n_steps`` steps, and a minute after the last; for where there is no terminal.

    It names stage, step, metrics of a bar, and the time left by the mean of all steps so far. ε is the last that was
    computed for a log, so that a line costs nothing.

    *Privacy.* Of a private training ε, the step and the clock remain: ε follows from public numbers, and how long a
    step takes is what no ε covers (``docs/privacy.md``). Batches of private rows have no line, for they count these
    rows: neither those of a validation nor those of a ``predict`` (:func:`~datamodules.data_module.is_disclosable`).
    """

    _is_enabled = True

    def disable(self) -> None:
        """Be silent, on ranks other than 0."""
        self._is_enabled = False

    def enable(self) -> None:
        """Enable the lines."""
        self._is_enabled = True

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock."""
        self._started = self._told = time.perf_counter()
        self._first_step = trainer.global_step

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Print a line, if it is time for one."""
        step, num_steps, now = trainer.global_step, int(trainer.estimated_stepping_batches), time.perf_counter()
        every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]
        is_due = step % max(every, 1) == 0 or step >= num_steps or now - self._told >= _LONG
        if not self._is_enabled or not is_due:
            return
        self._told = now
        metrics = self.get_metrics(trainer, pl_module).items()
        figures = [f"{name} {f'{value:.4g}' if isinstance(value, float) else value}" for name, value in metrics]
        left = (num_steps - step) * (now - self._started) / max(step - self._first_step, 1)
        _say(trainer, f"{step}/{num_steps} steps", figures, left)

    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the counts."""
        self._started, self._num_samples = time.perf_counter(), 0
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        self._num_asked = getattr(data, "num_total", 0) - len(getattr(data, "done", ()))

    def on_predict_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        """Print a line for a batch."""
        num_batches = sum(trainer.num_predict_batches)
        tells = is_disclosable(trainer.datamodule)  # type: ignore[attr-defined]
        if self._is_enabled and tells and outputs and math.isfinite(num_batches):
            self._num_samples += len(outputs)
            seconds = time.perf_counter() - self._started
            left = (num_batches - batch_idx - 1) * seconds / (batch_idx + 1)
            asked = max(self._num_asked, self._num_samples) if batch_idx + 1 < num_batches else self._num_samples
            rate = f"{self._num_samples / seconds:.1f} a second"
            _say(trainer, f"{self._num_samples}/{asked} samples", [rate], left)


def _say(trainer: pl.Trainer, done: str, figures: list[str], seconds_left: float) -> None:
    minutes, seconds = divmod(10 * math.ceil(seconds_left / 10), 60)
    hours, minutes = divmod(minutes, 60)
    left = f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
    stage = Path(trainer.default_root_dir).name or "training"
    rank_zero_info(" · ".join([f"{stage} {done}", *figures, f"{left} left"]))
