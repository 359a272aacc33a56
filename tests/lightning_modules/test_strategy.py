"""A rank leaves its process group before the interpreter ends."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy

from lightning_modules.training.strategy import LogicalBatchDDPStrategy


@pytest.mark.ddp
def test_the_group_of_any_backend_ends_with_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def joins(strategy: DDPStrategy) -> None:
        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)

    at_the_end: list[Callable[..., Any]] = []
    monkeypatch.setattr(DDPStrategy, "setup_environment", joins)
    monkeypatch.setattr(atexit, "register", at_the_end.append)
    LogicalBatchDDPStrategy(process_group_backend="gloo").setup_environment()
    assert dist.is_initialized()
    for _ in range(2):  # a group that something else has ended is no error
        for call in at_the_end:
            call()
        assert not dist.is_initialized()
