"""Gradients are summed over ranks bucket by bucket, whatever each rank computes and in whatever order."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode

from doppel import gradients
from doppel.gradients import GradientReducer
from doppel.privacy import noise
from doppel.privacy.banded_noise import BandedNoise
from doppel.privacy.clipping import PerSampleClipper
from doppel.privacy.noise import GaussianNoise
from doppel.privacy.private_step import PrivateTrainingError, noisy_mean
from doppel.privacy.secret import keyed_words

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


class Counter(TorchDispatchMode):
    """Counts operations."""

    num = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.num += 1
        return func(*args, **(kwargs or {}))


class WordsOfGPU:
    """A stream of words that a GPU would form."""

    def __init__(self, key: bytes, place: int) -> None:
        self.key, self.place = key, place

    def words(self, num: int) -> Any:
        return keyed_words(self.key, self.place, num, torch.device("cpu")).numpy()


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
                clipper.accumulate(on_ready=partial(reducer.ready, by_shards=True) if is_last else None)
            elif is_last:
                with reducer.watching():
                    losses(model, part).sum().backward()
            else:
                losses(model, part).sum().backward()
        early.append(reducer.num_launched)
        if private:
            reducer.sum(lambda shard, place: shard.div_(4.0))
        else:
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


def noisy_steps(rank: int, world_size: int, bands: int) -> list[Tensor]:
    """The noisy mean of four parts of whole numbers, dealt out to the ranks, as the last of ``bands`` steps from 5 on.

    Their sum is exact in any order.
    """
    noise = GaussianNoise(1.0, 1.0, seed=1)
    if bands > 1:
        noise = BandedNoise(1.0, 1.0, [bands**-0.5] * bands, 20, seed=1)
    for step in range(5, 5 + bands):
        found = noisy_step(rank, world_size, noise, step)
    return found


def noisy_step(rank: int, world_size: int, noise: GaussianNoise, step: int) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = [(7, 30), (1,), (64, 3), (2, 100), (5,)]
    dtypes = [torch.float32, torch.float64, torch.float32, torch.float32, torch.float32]
    parameters = [Parameter(torch.zeros(shape, dtype=kind)) for shape, kind in zip(shapes, dtypes, strict=True)]
    reducer = GradientReducer(parameters, BUCKET_MEGABYTES)
    reducer.zero()
    for part in range(4):
        for number, parameter in enumerate(parameters[:4]):  # the last one has no gradient on any rank
            gradient = torch.randint(-9, 10, parameter.shape).to(parameter.dtype)
            if part % world_size == rank and number != part:
                assert parameter.grad is not None
                parameter.grad.add_(gradient)
    if rank == 0:  # what is complete leaves early, on one rank
        reducer.ready(parameters[4], by_shards=True)
        parameters[0].grad = None
    noisy_mean(parameters, noise, 8, step, reducer)
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def run_noisy_rank(rank: int, folder: str, world_size: int, bands: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world_size)
    parameter = Parameter(torch.zeros(3))
    with pytest.raises(PrivateTrainingError, match=f"{world_size} ranks.*GradientReducer"):
        noisy_mean([parameter], GaussianNoise(1.0, 1.0), 8, step=0)
    torch.save(noisy_steps(rank, world_size, bands), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.ddp
@pytest.mark.filterwarnings("ignore:NOT PRIVATE")
@pytest.mark.parametrize(("world_size", "bands"), [(2, 1), (4, 1), (2, 3), (4, 3)])
def test_ranks_that_noise_a_shard_each_have_the_bits_of_one_rank(tmp_path: Path, world_size: int, bands: int) -> None:
    """Those of whole numbers; of gradients that must be rounded they have the same bits on every rank."""
    mp.start_processes(run_noisy_rank, (str(tmp_path), world_size, bands), nprocs=world_size, start_method="fork")
    expected = noisy_steps(0, 1, bands)
    assert len(expected) == 5 and all(gradient.all() for gradient in expected)
    for rank in range(world_size):
        found = torch.load(tmp_path / f"{rank}.pt")
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


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


@pytest.mark.filterwarnings("ignore:NOT PRIVATE")
def test_what_the_optimiser_reads_has_noise_whoever_replaces_a_gradient() -> None:
    """Before its buffer has left, or after."""
    for has_left in (False, True):
        parameter = Parameter(torch.zeros(3))
        reducer = GradientReducer([parameter])
        reducer.zero()
        reducer.num_launched = int(has_left)
        parameter.grad = torch.full((3,), 2.0**30)
        noisy_mean([parameter], GaussianNoise(1.0, 1.0, seed=1), 1, step=0, reducer=reducer)
        alone = torch.zeros(3)
        GaussianNoise(1.0, 1.0, seed=1).add_(alone, 0, step=0)
        assert parameter.grad.tolist() == (alone + (0.0 if has_left else 2.0**30)).tolist()


def test_a_parameter_whose_gradient_the_reducer_does_not_hold_is_refused() -> None:
    held, other = Parameter(torch.zeros(3)), Parameter(torch.zeros(2, 5))
    frozen = Parameter(torch.zeros(1), requires_grad=False)
    reducer = GradientReducer([held])
    noisy_mean([held, frozen], GaussianNoise(1.0, 1.0), 1, step=0, reducer=reducer)
    with pytest.raises(PrivateTrainingError, match=r"1 trained parameters.*\[2, 5\].*no noise"):
        noisy_mean([held, other], GaussianNoise(1.0, 1.0), 1, step=0, reducer=reducer)


def test_a_reducer_of_other_ranks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    reducer = GradientReducer([Parameter(torch.zeros(3))])
    monkeypatch.setattr(gradients, "_rank_of", lambda: (0, 2))
    with pytest.raises(RuntimeError, match="made for 1 ranks.*init_process_group"):
        reducer.sum()


@pytest.mark.parametrize("on_gpu", [False, True])
def test_operations_of_the_noise_do_not_grow_with_the_number_of_parameters(
    monkeypatch: pytest.MonkeyPatch, on_gpu: bool
) -> None:
    """420 adapters dispatch what one weight of their size does: a GPU waits for the host else."""

    def num_operations(parameters: list[Parameter]) -> int:
        reducer = GradientReducer(parameters)
        reducer.zero()
        with Counter() as counter:
            noisy_mean(parameters, GaussianNoise(1.0, 1.0), 8, step=0, reducer=reducer)
        return counter.num

    if on_gpu:  # the words by tensor operations, in one piece
        monkeypatch.setattr(noise, "_TOGETHER_CPU", noise._TOGETHER)
        monkeypatch.setattr(noise, "KeyedStream", WordsOfGPU)
    many = num_operations([Parameter(torch.zeros(16, 10)) for _ in range(420)])
    assert many == num_operations([Parameter(torch.zeros(420 * 160))])
    assert many < (700 if on_gpu else 90)
