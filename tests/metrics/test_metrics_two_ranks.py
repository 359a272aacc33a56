"""What a parser logs is on two ranks what it is on one, also when a rank saw nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from doppel.metrics.parser_metrics import parser_metric_collection

PREDICTED_TREES = ["(Yield (Now))", "(Broken", "(Today)", None, "(Yield (FindManager (Now)))"]
GOLD_TREES = ["(Yield (Now))", "(Yield (FindManager (Now)))", "(Now)", "(Today)", "(Yield (FindManager (Now)))"]


def values(rank: int, world_size: int, share: str) -> dict[str, float]:
    """All metrics, updated with this rank's share: "even" every other item, "first" all to rank 0."""

    def mine(items: list[Any]) -> list[Any]:
        if share == "even":
            return items[rank::world_size]
        return items if rank == 0 else []

    parser = parser_metric_collection(["FindManager"])
    if share == "even" or rank == 0:  # with "first", rank 1 never calls update
        parser.update(mine(PREDICTED_TREES), mine(GOLD_TREES))
    return {name: value.item() for name, value in parser.compute().items()}


def worker(rank: int, folder: str) -> None:
    """One of two gloo ranks."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.set_num_threads(1)
    found = {share: values(rank, 2, share) for share in ("even", "first")}
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.ddp
def test_two_ranks_equal_one(tmp_path: Path) -> None:
    mp.spawn(worker, args=(str(tmp_path),), nprocs=2)
    expected = values(0, 1, "even")
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        for share in ("even", "first"):
            assert found[share] == pytest.approx(expected, abs=1e-6), (rank, share)
