"""The attacker holds a model whose gradients lie in several buffers (some weights on a GPU, or in another dtype), or of
which every rank noises a part.

Those on the GPU once read a step's stream at their place, those on the CPU from its start: two parameters had the same
noise to the last bit, and the difference of their gradients had none. So it would be if two ranks read the stream at
one place, and a coordinate that two ranks or none took for theirs would have noise twice, or its gradient in the clear.

No GPU is needed: a tensor that says that it is on one has its words formed by the tensor operations that a GPU runs. No
process either: what a rank does depends on its number alone, and the sum over ranks is left out.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from doppel import gradients
from doppel.privacy import noise as module
from doppel.privacy.noise import PART, GaussianNoise
from doppel.privacy.private_step import noisy_mean
from doppel.privacy.secret import KeyedStream, Secret, keyed_words

pytestmark = pytest.mark.filterwarnings("ignore:NOT PRIVATE")
SEED = bytes(range(32))
SIZES = [7_001, 13, 4_000, 2**11, 1, 64, 63]
DTYPES = [torch.float32, torch.float64, torch.float32, torch.float64, torch.float32, torch.float64, torch.float32]
BUCKET_MEGABYTES = 0.02  # so that there are several of a dtype


class OnGPU(Tensor):
    """Has its noise by the tensor operations of a GPU, on the CPU."""

    device = torch.device("cuda", 0)


def noised(sizes: list[int], dtypes: list[torch.dtype], rank: int, num_ranks: int) -> list[Tensor]:
    """The gradients of a rank after a step of nobody, before ranks exchange their shards: noise where it is its own."""
    parameters = [nn.Parameter(torch.zeros(n, dtype=dtype)) for n, dtype in zip(sizes, dtypes, strict=True)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradients, "_rank_of", lambda: (rank, num_ranks))
        patch.setattr(gradients, "_reduce_scatter", lambda *args, **kwargs: None)
        patch.setattr(gradients, "_all_gather", lambda *args, **kwargs: None)
        reducer = gradients.GradientReducer(parameters, BUCKET_MEGABYTES)
        reducer.zero()
        noisy_mean(parameters, GaussianNoise(1.0, 1.0, seed=SEED), 1, 3, reducer)  # type: ignore[arg-type]
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


@given(st.integers(0, 10**7), st.integers(1, 300))
def test_shards_are_disjoint_and_cover_a_buffer(size: int, num_ranks: int) -> None:
    """And each begins where a part of the stream does."""
    shards = [gradients.shard_of(rank, num_ranks, size) for rank in range(num_ranks)]
    assert [start for start, _ in shards] == [0, *(stop for _, stop in shards[:-1])] and shards[-1][1] == size
    assert all(start % PART == 0 for start, stop in shards if start < stop)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 16])
def test_each_coordinate_has_noise_on_one_rank_and_it_is_what_one_rank_draws(num_ranks: int) -> None:
    """Of weights of several dtypes; an empty gradient is a gradient."""
    expected = noised(SIZES, DTYPES, 0, 1)
    ranks = [noised(SIZES, DTYPES, rank, num_ranks) for rank in range(num_ranks)]
    for number, alone in enumerate(expected):
        parts = torch.stack([rank[number] for rank in ranks])
        assert ((parts != 0).sum(0) == 1).all()
        assert torch.equal(parts.sum(0), alone)


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_no_word_of_a_steps_stream_is_used_twice(monkeypatch: pytest.MonkeyPatch, num_ranks: int) -> None:
    """On all ranks, in all buffers: they are the stream, each word of it once, without a gap."""
    used: list[Tensor] = []
    transform = module.gaussians

    def listen(*words: Tensor) -> tuple[Tensor, Tensor]:
        used.extend(half.flatten() for half in words)
        return transform(*(half.clone() for half in words))

    monkeypatch.setattr(module, "gaussians", listen)
    for rank in range(num_ranks):
        noised(SIZES, DTYPES, rank, num_ranks)
    words = torch.cat(used)
    assert len(words.unique()) == len(words) >= sum(SIZES)
    stream = KeyedStream(Secret(SEED).key("noise", 3))
    assert sorted(words.tolist()) == sorted(stream.words(len(words)).tolist())


def test_the_difference_of_two_gradients_in_two_buffers_has_noise() -> None:
    single, double = noised([1000, 1000], [torch.float32, torch.float64], 0, 1)
    assert (single - double).std().item() == pytest.approx(2**0.5, rel=0.1)


@pytest.mark.parametrize("together", [256, 2**10, 2**17])
def test_noise_is_the_same_on_a_gpu_however_many_words_are_formed_together(
    monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    def on_cpu(key: bytes, start: int, num: int, device: Any) -> Tensor:
        assert device.type == "cuda"
        return keyed_words(key, start, num, torch.device("cpu"))

    choose = random.Random(together)
    monkeypatch.setattr(module, "keyed_words", on_cpu)
    monkeypatch.setattr(module, "_TOGETHER", together)
    for size in (1, 63, 64, 65, 1000, 3001):
        place, noise = PART * choose.randrange(100), GaussianNoise(1.0, 1.0, seed=SEED)  # type: ignore[arg-type]
        expected, found = torch.ones(size), torch.ones(size)
        noise.add_(expected, place, step=3)
        noise.add_(found.as_subclass(OnGPU), place, step=3)
        assert torch.equal(found, expected)
