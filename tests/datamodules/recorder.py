"""A module that trains nothing worth having, but remembers which batches it saw."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer

from datamodules.batches.batch import LogicalBatch, PromptBatch


def sums(batch: LogicalBatch) -> list[int]:
    """A short, sorted account of a batch's rows."""
    parts = [mb.input_ids if mb.weights is None else mb.input_ids[mb.weights > 0] for mb in batch.micro_batches]
    return sorted(int(ids.sum()) for part in parts for ids in part)  # the padding id is 0


class Recorder(LightningModule):
    """Steps by hand, as the project's models do, and records every batch; in a file per rank if asked."""

    def __init__(self, text_format: Any, folder: Path | None = None) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.text_format = text_format
        self.folder = folder
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.train_batches: list[tuple[int, list[int], float]] = []
        self.evaluated: list[list[int]] = []
        self.predicted: list[PromptBatch] = []

    def training_step(self, batch: LogicalBatch, batch_idx: int) -> None:
        self.train_batches.append((self.global_step, sums(batch), batch.expected_num_units))
        optimizer = self.optimizers()
        (self.weight * 0).backward()
        optimizer.step()  # type: ignore[union-attr]

    def validation_step(self, batch: LogicalBatch, batch_idx: int) -> None:
        self.evaluated.append(sums(batch))

    def test_step(self, batch: LogicalBatch, batch_idx: int) -> None:
        self.evaluated.append(sums(batch))

    def predict_step(self, batch: PromptBatch, batch_idx: int) -> list[int]:
        self.predicted.append(batch)
        return batch.indices

    def on_train_end(self) -> None:
        if self.folder is not None:
            record = {"train": self.train_batches, "evaluated": self.evaluated}
            (self.folder / f"rank{self.global_rank}.json").write_text(json.dumps(record))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def make_trainer(**kwargs: Any) -> Trainer:
    """A silent trainer on the CPU."""
    defaults: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
    }
    return Trainer(**{**defaults, **kwargs})
