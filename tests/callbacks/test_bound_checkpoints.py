"""A checkpoint is written in pieces beside its place, named by the ledger, and then has its name."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric.plugins import TorchCheckpointIO

from callbacks.bound_checkpoints import BoundCheckpoints
from doppel.files import sha256_of
from doppel.privacy.private_step import PrivateTrainingError


def test_a_file_is_its_owners_and_takes_no_memory_of_its_size(tmp_path: Path) -> None:
    told: list[tuple[list[str], str, list[str]]] = []

    def release(checkpoint: dict[str, Any], sha256: str) -> None:
        told.append((list(checkpoint), sha256, [file.name for file in path.parent.iterdir()]))

    saver = BoundCheckpoints(TorchCheckpointIO(), release)
    path, checkpoint = tmp_path / "new" / "last.ckpt", {"state_dict": {"w": torch.arange(4e6)}}
    tracemalloc.start()
    try:
        saver.save_checkpoint(checkpoint, path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert path.stat().st_size > 16e6 > 10 * peak
    assert path.stat().st_mode & 0o077 == 0
    assert told == [(["state_dict"], sha256_of(path), ["last.ckpt.partial"])]
    assert torch.equal(saver.load_checkpoint(path)["state_dict"]["w"], torch.arange(4e6))
    assert [file.name for file in path.parent.iterdir()] == ["last.ckpt"]


@pytest.mark.parametrize("fails", ["releasing", "writing"])
def test_what_cannot_be_written_leaves_the_file_before_it(tmp_path: Path, fails: str) -> None:
    def release(checkpoint: dict[str, Any], sha256: str) -> None:
        if fails == "releasing" and "bad" in checkpoint:
            raise OSError("no ledger")

    saver, path = BoundCheckpoints(TorchCheckpointIO(), release), tmp_path / "last.ckpt"
    saver.save_checkpoint({"step": 1}, path)
    with pytest.raises(Exception, match="no ledger|local object"):
        saver.save_checkpoint({"step": 2, "bad": (lambda: 0) if fails == "writing" else 0}, path)
    assert torch.load(path, weights_only=True) == {"step": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]


def test_a_file_is_on_disk_before_it_has_its_name_and_an_older_one_may_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    path, sync, rename = tmp_path / "last.ckpt", os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        order.append(f"sync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}")
        sync(descriptor)

    def renamed(self: Path, to: Path) -> Path:
        order.append(f"rename {self.name} {Path(to).name}")
        return rename(self, to)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    BoundCheckpoints(TorchCheckpointIO(), lambda *_: order.append("ledger")).save_checkpoint({"step": 1}, path)
    partial = f"{path.name}.partial"
    assert order == [f"sync {partial}", "ledger", f"rename {partial} {path.name}", f"sync {tmp_path.name}"]


@pytest.mark.parametrize(("path", "options"), [("s3://bucket/a.ckpt", None), ("a.ckpt", {"endpoint": "here"})])
def test_a_place_where_the_ledger_cannot_name_the_file_is_refused(path: str, options: Any) -> None:
    saver = BoundCheckpoints(TorchCheckpointIO(), lambda checkpoint, sha256: None)
    with pytest.raises(PrivateTrainingError, match="--run_dir"):
        saver.save_checkpoint({}, path, options)
