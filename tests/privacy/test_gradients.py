"""Gradients are summed over ranks bucket by bucket, whatever each rank computes and in whatever order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn import Parameter

from doppel.gradients import GradientReducer
from doppel.privacy.clipping import PerSampleClipper

BUCKET_MEGABYTES = 200 / 2**20  # 50 float32 numbers


class Tied(nn.Module):
    """An embedding tied to the head, and a layer between them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(11, 6)
        self.middle = nn.Sequential(nn.Linear(6, 7), nn.LayerNorm(7), nn.Linear(7, 6))
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids_BT: Tensor) -> Tensor:
        return self.head(self.middle(self.embed(ids_BT)).tanh())


def losses(model: nn.Module, ids_BT: Tensor) -> Tensor:
    return model(ids_BT).log_softmax(-1)[..., 3].sum(1)


def rows(rank: int, step: int) -> list[Tensor]:
    """Micro-batches of a rank; at step 1 the last rank has none."""
    generator = torch.Generator().manual_seed(10 * rank + step)
    number = 0 if step == 1 and rank == 1 else 1 + rank
    return [torch.randint(0, 11, (3, 4), generator=generator) for _ in range(number)]


def train(rank: int, world_size: int, private: bool) -> tuple[list[Tensor], list[int]]:
    """Gradients of two steps of this rank, and how many buckets were on their way before ``sum``."""
    model = Tied()
    clipper = PerSampleClipper(model, max_grad_norm=0.5)
    reducer = GradientReducer(model.parameters(), BUCKET_MEGABYTES)
    found, early = [], []
    for step in range(2):
        reducer.zero()
        mine = [part for r in range(rank, 2, world_size) for part in rows(r, step)]
        for number, part in enumerate(mine, start=1):
            is_last = number == len(mine)
            if private:
                with clipper.capture(len(part)):
                    losses(model, part).sum().backward()
                clipper.accumulate(on_ready=reducer.ready if is_last else None)
            elif is_last:
                with reducer.watching():
                    losses(model, part).sum().backward()
            else:
                losses(model, part).sum().backward()
        early.append(reducer.num_launched)
        reducer.sum()
        reducer.divide(4.0)
        found += [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return found, early


def run_rank(rank: int, folder: str, private: bool) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    torch.save(train(rank, 2, private), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.ddp
@pytest.mark.parametrize("private", [True, False])
def test_two_ranks_sum_what_one_rank_computes(tmp_path: Path, private: bool) -> None:
    mp.start_processes(run_rank, (str(tmp_path), private), nprocs=2, start_method="fork")
    expected, _ = train(0, 1, private)
    for rank in range(2):
        found, early = torch.load(tmp_path / f"{rank}.pt")
        torch.testing.assert_close(found, expected)
        assert early[0] >= 2  # overlapped with the backward pass, or with the clipped sum
        assert early[1] == (0 if rank == 1 else early[0])  # a rank without a micro-batch joins at the end


def test_every_gradient_is_ready_once_and_final(tiny_model: str) -> None:
    from transformers import AutoModelForCausalLM

    for checkpointing in (False, True):
        model: Any = AutoModelForCausalLM.from_pretrained(tiny_model).train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        clipper = PerSampleClipper(model, max_grad_norm=0.1)
        ids = torch.randint(3, 200, (4, 9))
        with clipper.capture(4):
            model(input_ids=ids, labels=ids, use_cache=False).logits.log_softmax(-1)[..., 5].sum().backward()
        seen: dict[int, Tensor] = {}

        def ready(parameter: Parameter, seen: dict[int, Tensor] = seen) -> None:
            assert id(parameter) not in seen
            assert parameter.grad is not None
            seen[id(parameter)] = parameter.grad.clone()

        clipper.accumulate(on_ready=ready)
        parameters = [p for p in model.parameters() if p.grad is not None]
        assert len(seen) == len(parameters) > 10
        for parameter in parameters:
            assert torch.equal(seen[id(parameter)], parameter.grad)


def test_a_replaced_or_missing_gradient_counts_as_it_stands() -> None:
    kept, replaced, missing = (Parameter(torch.zeros(3)) for _ in range(3))
    reducer = GradientReducer([kept, replaced, missing])
    reducer.zero()
    assert kept.grad is not None
    kept.grad.add_(2.0)
    replaced.grad = torch.full((3,), 4.0)
    missing.grad = None
    reducer.sum()
    reducer.divide(2.0)
    assert [p.grad.tolist() for p in (kept, replaced, missing) if p.grad is not None] == [
        [1.0] * 3,
        [2.0] * 3,
        [0.0] * 3,
    ]
