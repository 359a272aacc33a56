"""Checkpoints whose weights are on file before they are on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning.fabric.plugins import CheckpointIO


class BoundCheckpoints(CheckpointIO):
    """Writes checkpoints as another one does, after it has shown each to whoever notes its weights.

    This is the last place that a checkpoint passes, on rank 0 alone: the weights are those of the file, whatever
    callbacks (such as one that averages weights) and the module have made of them.

    Args:
        io: What writes the files.
        note: Called with a checkpoint before it is written; if it raises, nothing is written.
    """

    def __init__(self, io: CheckpointIO, note: Callable[[dict[str, Any]], None]) -> None:
        self._io = io
        self._note = note

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Note the weights, then write the file."""
        self._note(checkpoint)
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
