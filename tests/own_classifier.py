"""A model of one's own, as `docs/own-model.md` shows one, for attacks on what the guarantee asks of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from datamodules.unit_data_module import UnitBatch, UnitDataModule
from doppel.privacy.ledger import Ledger
from lightning_modules.training.logical_batch_module import LogicalBatchModule
from tests.private_training import fit, privacy

WIDTH = 8


class Classifier(LogicalBatchModule):
    """Two labels of rows of numbers; says nothing by which its rows could be checked."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, 2)

    def losses(self, batch: UnitBatch) -> Tensor:
        inputs_BD, labels_B = batch.rows
        return nn.functional.cross_entropy(self.head(inputs_BD), labels_B, reduction="none")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Checked(Classifier):
    """Has rows by which it is checked."""

    def probe(self) -> tuple[UnitBatch, UnitBatch]:
        inputs = torch.ones(2, WIDTH) * torch.tensor([[5.0], [1.0]])
        labels = torch.tensor([1, 0])
        return UnitBatch((inputs[1:], labels[1:]), 1, 1), UnitBatch((inputs, labels), 2, 1)


def collate(rows: list[dict[str, Any]]) -> tuple[Tensor, Tensor]:
    return torch.tensor([row["x"] for row in rows]), torch.tensor([row["y"] for row in rows])


def data() -> UnitDataModule:
    """Sixty units of a row each, of which ten are expected in a step."""
    x = torch.randn(60, WIDTH, generator=torch.Generator().manual_seed(0)).tolist()
    rows = [{"x": x[i], "y": i % 2, "user": str(i)} for i in range(60)]
    return UnitDataModule(rows, "user", collate, batch_size=10)


def train(folder: Path, module: LogicalBatchModule, callbacks: list[Callback] | None = None, **kwargs: Any) -> Trainer:
    """Six private steps."""
    return fit(folder, module, data(), [privacy(folder, seed=None), *(callbacks or [])], max_epochs=1, **kwargs)


def spent_steps(folder: Path) -> int:
    ledger = Ledger(folder / "ledger.jsonl")
    known = ledger.mechanisms.get(ledger.mechanism_id("default", "fit"))
    return 0 if known is None else known.done_steps


def caveats(folder: Path) -> list[str]:
    (scope,) = Ledger(folder / "ledger.jsonl").summary()["scopes"].values()
    assert not scope["voids"]
    return list(scope["caveats"])
