"""Loss on held-out public text against the tokens that a model has read."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback

from datamodules.batch import IGNORE_INDEX, LogicalBatch
from doppel.errors import UserError
from doppel.files import write_text

_COLUMNS = ("step", "tokens", "loss")


class LossCurve(Callback):
    """Writes ``RUN_DIR/loss.csv``: a row for each validation, with the step, tokens trained on, and nats a token.

    A run with ``num_sanity_val_steps: -1`` has a row of step 0 too. A resumed run goes on with the file: rows of steps
    that it takes again are replaced.

    Formal guarantees:
        Tokens of a batch and losses tell of the data, and no noise is added. So the data must be declared public, and a
        training on other data is refused.

    Args:
        file: The file; null for RUN_DIR/loss.csv.
    """

    def __init__(self, file: str | None = None) -> None:
        self.file = file
        self._tokens = 0

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Refuse data that are not public.

        Raises:
            UserError: They are not.
        """
        if stage == "fit" and not getattr(trainer.datamodule, "is_public", False):  # type: ignore[attr-defined]
            raise UserError("LossCurve tells losses without noise: leave it out of a training on private data")

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: LogicalBatch, batch_idx: int
    ) -> None:
        """Count the tokens with a loss."""
        self._tokens += sum(int((part.labels[:, 1:] != IGNORE_INDEX).sum()) for part in batch.micro_batches)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the row on rank 0."""
        loss = trainer.callback_metrics.get("val/loss")
        tokens = trainer.strategy.reduce(torch.tensor(float(self._tokens), dtype=torch.float64), reduce_op="sum")
        if loss is None or not trainer.is_global_zero:
            return
        path = Path(self.file or Path(trainer.default_root_dir) / "loss.csv")
        row = (trainer.global_step, int(tokens), f"{float(loss):.4f}")
        kept = [old for old in _read(path) if int(old[0]) < trainer.global_step]
        write_text(path, "".join(f"{','.join(map(str, line))}\n" for line in [_COLUMNS, *kept, row]))

    def state_dict(self) -> dict[str, Any]:
        """Tokens so far."""
        return {"tokens": self._tokens}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there."""
        self._tokens = state_dict["tokens"]


def _read(path: Path) -> list[list[str]]:
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))[1:]
