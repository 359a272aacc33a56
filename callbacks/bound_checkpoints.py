"""Checkpoints whose weights are on file before they are on disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import CheckpointIO, TorchCheckpointIO


class BoundCheckpoints(CheckpointIO):
    """Writes checkpoints after it has shown each to whoever notes its weights.

    This is the last place that a checkpoint passes, on rank 0 alone: the weights are those of the file, whatever
    callbacks (such as one that averages weights) and the module have made of them.

    A local file is written beside its place and moved there when it is whole. Lightning's own way forms all of it in
    memory and then in the folder for temporary files, from where a move to another disk is no atomic step.

    Args:
        io: What writes other files, and reads and removes all of them.
        note: Called with a checkpoint before it is written; if it raises, nothing is written.
    """

    def __init__(self, io: CheckpointIO, note: Callable[[dict[str, Any]], None]) -> None:
        self._io = io
        self._note = note

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Note the weights, then write the file."""
        self._note(checkpoint)
        if type(self._io) is TorchCheckpointIO and storage_options is None and "://" not in str(path):
            _write(checkpoint, Path(path))
        else:
            self._io.save_checkpoint(checkpoint, path, storage_options)

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """As the other one."""
        return self._io.load_checkpoint(*args, **kwargs)

    def remove_checkpoint(self, path: Any) -> None:
        """As the other one."""
        self._io.remove_checkpoint(path)

    def teardown(self) -> None:
        """As the other one."""
        self._io.teardown()


def _write(checkpoint: dict[str, Any], path: Path) -> None:
    """Write a checkpoint that its owner alone can read; a file of that name stays whole until the new one is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    try:
        os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
        torch.save(checkpoint, str(partial))
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
