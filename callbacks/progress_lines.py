"""Progress of trainings and samplings in logs."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.utilities import rank_zero_info
from tqdm import tqdm

from callbacks.differential_privacy import DifferentialPrivacy
from datamodules.data_module import may_be_told

#: Seconds after which a step has a line in any case.
_LONG = 60.0


class ProgressLines(ProgressBar):
    """A line every ``trainer.log_every_n_steps`` steps, and a minute after the last; for where there is no terminal.

    It names the stage, the step, the ε that is spent of its target, the metrics that a bar would show, and the time
    left, by the mean of all steps so far. ε is the last that was computed for a log, so that a line costs nothing.

    *Privacy.* Metrics named ``private/…`` are left out, whatever else is allowed to log them; of a private training
    nothing but ε, the step and the clock then remains; ε follows from public numbers, and how long a step takes is
    what no ε covers (``docs/privacy.md``). Batches of private rows have no line,
    for they count these rows: neither those of a validation nor those of a ``predict``
    (:func:`~datamodules.data_module.may_be_told`).
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
        self._started = self._told = time.perf_counter()
        self._first_step = trainer.global_step
        self._num_steps = trainer.estimated_stepping_batches
        self._name = _stage(trainer)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """A line, if it is time for one."""
        step, now = trainer.global_step, time.perf_counter()
        if not self._is_enabled or not self._is_due(trainer, step, now):
            return
        self._told = now
        figures = []
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, DifferentialPrivacy) and callback.spent is not None:
                spent = "NOT PRIVATE" if math.isinf(callback.spent) else f"ε {callback.spent:.2f}"
                figures.append(f"{spent} of {callback.privacy.target_epsilon:g}")
        figures += [
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in self.get_metrics(trainer, pl_module).items()
            if not name.startswith("private/") and name != "v_num"
        ]
        left = (self._num_steps - step) * (now - self._started) / max(step - self._first_step, 1)
        self._say(int(step), int(self._num_steps), "steps", figures, left)

    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the counts."""
        self._started, self._num_samples, self._name = time.perf_counter(), 0, _stage(trainer)
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        self._num_asked = getattr(data, "num_total", 0) - len(getattr(data, "done", ()))

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
            asked = max(self._num_asked, self._num_samples) if batch_idx + 1 < num_batches else self._num_samples
            self._say(self._num_samples, asked, "samples", [f"{self._num_samples / seconds:.1f} a second"], left)

    def _is_due(self, trainer: pl.Trainer, step: int, now: float) -> bool:
        every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]
        return step % max(every, 1) == 0 or step >= self._num_steps or now - self._told >= _LONG

    def _say(self, done: int, total: int, what: str, figures: list[str], seconds_left: float) -> None:
        rank_zero_info(_line(self._name, done, total, what, figures, 10 * math.ceil(seconds_left / 10)))


class ProgressInPlace(ProgressLines):
    """The same line beside a bar, in one place of a terminal, after every step or batch of samples.

    tqdm draws it: cut to the width of the terminal, at most ten times a second. It is cleared before anything else is
    told, and what is left of it says what was done.
    """

    _bar: tqdm | None = None

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leave the line as it is."""
        self._close()

    def on_predict_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leave the line as it is."""
        self._close()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Leave the line as it is; the error stands below it."""
        self._close()

    def _is_due(self, trainer: pl.Trainer, step: int, now: float) -> bool:
        return True

    def _say(self, done: int, total: int, what: str, figures: list[str], seconds_left: float) -> None:
        if self._bar is None:
            self._bar = tqdm(bar_format="{desc} {bar:20}", file=sys.stderr, dynamic_ncols=True, delay=1e-9)
        self._bar.total, self._bar.n = total, done
        self._bar.set_description_str("   " + _line(self._name, done, total, what, figures, math.ceil(seconds_left)))

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _line(name: str, done: int, total: int, what: str, figures: list[str], seconds_left: int) -> str:
    minutes, seconds = divmod(seconds_left, 60)
    hours, minutes = divmod(minutes, 60)
    left = f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
    return " · ".join([f"{name} {done}/{total} {what}", *figures, f"{left} left"])


def _stage(trainer: pl.Trainer) -> str:
    return Path(trainer.default_root_dir).name or "training"
