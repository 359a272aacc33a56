"""A checkpoint is noted, then written in pieces, and the file before it stays whole until then."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric.plugins import TorchCheckpointIO

from callbacks.bound_checkpoints import BoundCheckpoints


class Elsewhere(TorchCheckpointIO):
    """Storage of another kind, which keeps the names that it was given."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        self.paths.append(str(path))


def test_a_file_is_its_owners_and_takes_no_memory_of_its_size(tmp_path: Path) -> None:
    noted: list[list[str]] = []
    saver = BoundCheckpoints(TorchCheckpointIO(), lambda checkpoint: noted.append(list(checkpoint)))
    path, checkpoint = tmp_path / "new" / "last.ckpt", {"state_dict": {"w": torch.arange(4e6)}}
    tracemalloc.start()
    try:
        saver.save_checkpoint(checkpoint, path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert path.stat().st_size > 16e6 > 10 * peak
    assert path.stat().st_mode & 0o077 == 0
    assert noted == [["state_dict"]]
    assert torch.equal(saver.load_checkpoint(path)["state_dict"]["w"], torch.arange(4e6))
    assert [file.name for file in path.parent.iterdir()] == ["last.ckpt"]


@pytest.mark.parametrize("fails", ["noting", "writing"])
def test_what_cannot_be_written_leaves_the_file_before_it(tmp_path: Path, fails: str) -> None:
    def note(checkpoint: dict[str, Any]) -> None:
        if fails == "noting" and "bad" in checkpoint:
            raise OSError("no ledger")

    saver, path = BoundCheckpoints(TorchCheckpointIO(), note), tmp_path / "last.ckpt"
    saver.save_checkpoint({"step": 1}, path)
    with pytest.raises(Exception, match="no ledger|local object"):
        saver.save_checkpoint({"step": 2, "bad": (lambda: 0) if fails == "writing" else 0}, path)
    assert torch.load(path, weights_only=True) == {"step": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]


def test_other_storage_writes_its_own_files(tmp_path: Path) -> None:
    other = Elsewhere()
    BoundCheckpoints(other, lambda checkpoint: None).save_checkpoint({}, tmp_path / "a.ckpt")
    assert other.paths == [str(tmp_path / "a.ckpt")] and not list(tmp_path.iterdir())
