"""The shipped trainer saves after every epoch, so that a run which dies in a later one can go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import yaml
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch.utils.data import DataLoader

ROOT = Path(__file__).resolve().parents[2]


class Line(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        self.manual_backward(self.weight * batch.sum())
        optimizer.step()

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.log("val/loss", self.weight.detach())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1.0)


class Interrupted(Exception):
    """The power goes out."""


class DieInLastEpoch(Callback):
    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.current_epoch == 2:
            raise Interrupted


def test_a_run_that_dies_leaves_the_checkpoint_of_its_last_whole_epoch(tmp_path: Path) -> None:
    config = yaml.safe_load((ROOT / "configs" / "trainer.yaml").read_text())["trainer"]
    (arguments,) = [c["init_args"] for c in config["callbacks"] if c["class_path"].endswith("ModelCheckpoint")]
    checkpoints = ModelCheckpoint(**{**arguments, "dirpath": tmp_path})
    trainer = pl.Trainer(
        max_epochs=3,
        callbacks=[checkpoints, DieInLastEpoch()],
        num_sanity_val_steps=0,
        logger=False,
        accelerator="cpu",
        enable_progress_bar=False,
    )
    data = DataLoader(torch.ones(4, 1))
    try:
        trainer.fit(Line(), data, data)
    except Interrupted:
        saved = torch.load(tmp_path / "last.ckpt", weights_only=True)
        assert (saved["epoch"], saved["global_step"]) == (1, 8)
        assert sum(not path.is_symlink() for path in tmp_path.iterdir()) == 1, "older checkpoints are removed"
        return
    raise AssertionError("the run was to die")
