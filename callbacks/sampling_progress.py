"""Progress bar of sampling."""

from __future__ import annotations

import time
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import TQDMProgressBar

from doppel.lispress import is_valid


class SampleCount:
    """Counts what rank 0 has sampled."""

    def __init__(self) -> None:
        self.num_samples = self.num_valid = 0
        self.started = time.perf_counter()

    def add(self, pl_module: Any, outputs: Any) -> dict[str, str]:
        """Count the samples of a batch; samples per second and, where the model writes trees, how many are valid."""
        self.num_samples += len(outputs)
        figures = {"samples/s": f"{self.num_samples / (time.perf_counter() - self.started):.1f}"}
        if pl_module.codec.target == "parse":
            self.num_valid += sum(is_valid(sample.text) for sample in outputs)
            figures["valid trees"] = f"{self.num_valid / self.num_samples:.1%}"
        return figures


class SamplingProgress(TQDMProgressBar):
    """Lightning's progress bar, with samples per second and the share of valid trees during ``predict``.

    Both are of rank 0, whose bar is the one shown; the share appears where the model writes trees.

    Args:
        refresh_rate: Batches between two updates of the bar; 0 hides it.
        process_position: Line of the bar, where several runs share a terminal.
        leave: Whether the bar of an epoch stays after the epoch.
    """

    def __init__(self, refresh_rate: int = 1, process_position: int = 0, leave: bool = False) -> None:
        super().__init__(refresh_rate=refresh_rate, process_position=process_position, leave=leave)

    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the counts."""
        super().on_predict_start(trainer, pl_module)
        self._samples = SampleCount()

    def on_predict_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        """Count the samples of the batch and show the figures."""
        super().on_predict_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        if self.is_disabled or not outputs:
            return
        figures = self._samples.add(pl_module, outputs)
        if self._should_update(batch_idx + 1, self.predict_progress_bar.total):  # type: ignore[arg-type]
            self.predict_progress_bar.set_postfix(figures)
