"""Whether a checkpoint can be kept, before anything is spent."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from doppel.errors import UserError

#: Moments that an optimiser may come to keep of each trained weight, as Adam does, in float32.
_STATE_BYTES = 8


def try_checkpoint(trainer: pl.Trainer) -> None:
    """Write a checkpoint where they will be kept, read it back, and remove it; nothing without a ModelCheckpoint.

    The file is as large as later ones, which also hold the state of the optimiser: a disk that fills up only then would
    cost the steps until then. Every rank calls this.

    Raises:
        UserError: It cannot be written or read; nothing was spent.
    """
    keepers = [c for c in trainer.checkpoint_callbacks if isinstance(c, ModelCheckpoint) and c.dirpath]
    if not keepers:
        return
    path = Path(str(keepers[0].dirpath), ".trial.ckpt")
    try:
        trainer.save_checkpoint(path)
        if trainer.is_global_zero:
            found = torch.load(path, map_location="cpu", weights_only=True)
            trained = sum(p.numel() for p in trainer.lightning_module.parameters() if p.requires_grad)
            with path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size + _STATE_BYTES * trained)
            if found["state_dict"].keys() != trainer.lightning_module.state_dict().keys():
                raise RuntimeError("it holds other weights")
    except (OSError, RuntimeError, pickle.UnpicklingError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise UserError(
            f"a checkpoint cannot be kept in {path.parent} ({reason}): free some space there, or give another folder; "
            "no step was spent"
        ) from error
    finally:
        if trainer.is_global_zero:
            path.unlink(missing_ok=True)
