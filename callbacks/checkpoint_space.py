"""Room on a disk for the checkpoints of a training, which no other file can take."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import IO, cast

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint

from doppel.errors import UserError
from lightning_modules.training.logical_batch_module import LogicalBatchModule

#: What a checkpoint has beside its tensors, at most: the state of loops and callbacks, and a line of the ledger.
_MORE = 2**20


class CheckpointSpace:
    """Holds room for the next checkpoint of a training, from before its first step is paid until it is written.

    A file without a name in the folder of the checkpoints takes it, so that nobody finds it, and whatever ends the
    process frees it. A new training takes room for two: the one that it will keep, and the next one beside it. So a
    disk that others fill costs no paid step: a training that cannot hold the room ends before the next one.

    Args:
        folder: Of the checkpoints.
        size: Bytes of one, as far as is known before the first.
        num: How many there is to be room for, the one that will be kept included.
    """

    def __init__(self, folder: Path, size: int, num: int = 2) -> None:
        self._folder, self._size, self._num, self._held = folder, size, num, 0
        self._file: IO[bytes] | None = None

    @classmethod
    def of(cls, trainer: pl.Trainer) -> CheckpointSpace | None:
        """Return the room for the checkpoints of a training: of weights that they hold, and of two moments of each
        trained one, as Adam keeps. None where it keeps none, or on other ranks than the first.

        What a kill has left of files that were being written is removed: nobody goes on from them.
        """
        keepers = [c for c in trainer.checkpoint_callbacks if isinstance(c, ModelCheckpoint) and c.dirpath]
        if not keepers or not trainer.is_global_zero:
            return None
        folder = Path(str(keepers[0].dirpath))
        for left in folder.glob("*.ckpt.part*"):
            left.unlink(missing_ok=True)
        module = trainer.lightning_module
        left_out = cast(LogicalBatchModule, module).left_out()
        values = [p for name, p in module.named_parameters() if name not in left_out] + list(module.buffers())
        size = sum(value.nbytes + (8 * value.numel() if value.requires_grad else 0) for value in values)
        return cls(folder, size + _MORE, num=1 if any(folder.glob("*.ckpt")) else 2)

    def hold(self) -> None:
        """Take what is wanted and not held.

        Raises:
            UserError: The disk has no such room.
        """
        if self._held >= (wanted := self._num * self._size):
            return
        try:
            if self._file is None:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 (as long as the training)
            os.posix_fallocate(self._file.fileno(), 0, wanted)
        except OSError as error:
            raise UserError(
                f"the next checkpoint cannot be kept in {self._folder} ({error.strerror}): free some space there "
                f"({wanted / 2**20:,.0f} MB), or give another folder; nothing more was spent"
            ) from error
        self._held = wanted

    def lend(self) -> None:
        """Give back the room of one checkpoint, which is about to be written."""
        if self._file is not None:
            self._held = max(0, self._held - self._size)
            os.ftruncate(self._file.fileno(), self._held)

    def note(self, size: int) -> None:
        """Note that one was written, of so many bytes: from now on there is to be room for one more."""
        self._size, self._num = max(self._size, size + _MORE), 1

    def close(self) -> None:
        """Give back all of it."""
        if self._file is not None:
            self._file.close()
            self._file, self._held = None, 0
