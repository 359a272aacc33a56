"""Checkpoints that are in the ledger before they are on disk under their name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch import LightningDataModule

from callbacks.checkpoint_space import CheckpointSpace
from doppel.files import sha256_of, to_disk
from doppel.privacy.private_step import PrivateTrainingError

_OF_DATA = (
    LightningDataModule.CHECKPOINT_HYPER_PARAMS_KEY,
    LightningDataModule.CHECKPOINT_HYPER_PARAMS_NAME,
    LightningDataModule.CHECKPOINT_HYPER_PARAMS_TYPE,
)


class BoundCheckpoints(CheckpointIO):
    """Writes each checkpoint beside its place, tells its digest to whoever keeps the ledger, and gives it its name.

    This is the last place that a checkpoint passes, on rank 0 alone: the digest is of the file, whatever callbacks
    (such as one that averages weights) and the module have made of it. A file of that name stays whole until the new
    one is on disk (fsync), for older ones may be removed then: a kill or a power cut at any moment leaves one, and none
    that the ledger does not name.

    Lightning's own way forms all of it in memory and then in the folder for temporary files, from where a move to
    another disk is no atomic step.

    Args:
        io: What reads and removes files.
        release: Called with a checkpoint and the SHA-256 of its file before it gets its name; if it raises, there is
            no checkpoint.

    Attributes:
        space: Room that is held for the next file, and lent to it; None: whatever the disk has.
    """

    def __init__(self, io: CheckpointIO, release: Callable[[dict[str, Any], str], None]) -> None:
        self._io = io
        self._release = release
        self.space: CheckpointSpace | None = None

    def hold(self) -> None:
        """Hold room for the next file.

        Raises:
            UserError: The disk has none.
        """
        if self.space is not None:
            self.space.hold()

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Write the file, which its owner alone can read, without what ``save_hyperparameters`` keeps of a data module:
        that may be its rows.

        Raises:
            PrivateTrainingError: It is to lie elsewhere than in a folder of this machine.
        """
        if storage_options is not None or "://" in str(path):
            raise PrivateTrainingError(
                f"the checkpoint {path} is to lie elsewhere than in a folder: a private training saves in its "
                "--run_dir, so that the ledger can name the file; copy it from there"
            )
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.partial")
        checkpoint = {key: value for key, value in checkpoint.items() if key not in _OF_DATA}
        if self.space is not None:
            self.space.lend()
        try:
            os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
            torch.save(checkpoint, str(partial))
            to_disk(partial)
            self._release(checkpoint, sha256_of(partial))
            if self.space is not None:
                self.space.note(partial.stat().st_size)
            partial.replace(path)
            to_disk(path.parent)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return what the wrapped one does."""
        return self._io.load_checkpoint(*args, **kwargs)

    def remove_checkpoint(self, path: Any) -> None:
        """Remove a checkpoint as the wrapped one does."""
        self._io.remove_checkpoint(path)

    def teardown(self) -> None:
        """Tear down the wrapped one, and give the room back."""
        if self.space is not None:
            self.space.close()
        self._io.teardown()
