"""The attacker holds a model of which some parameters are on a GPU and some on the CPU (offloaded embeddings, say).

Those on the GPU read a step's stream at their place; those on the CPU once read it from its start, whatever had been
read before. Two parameters then had the same noise to the last bit, and the difference of their gradients had none.

No GPU is needed: a parameter that says that it is on one has its words formed by the tensor operations that a GPU runs.
"""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn

from doppel.privacy import noise as module
from doppel.privacy.noise import GaussianNoise
from doppel.privacy.secret import KeyedStream, Secret

pytestmark = pytest.mark.filterwarnings("ignore:NOT PRIVATE")
SEED = bytes(range(32))


class OnGPU(nn.Parameter):
    """Has its noise by the GPU's way, on the CPU."""

    is_cuda = True


def parameters(sizes: list[int], on_gpu: list[bool]) -> list[nn.Parameter]:
    return [(OnGPU if is_there else nn.Parameter)(torch.zeros(n)) for n, is_there in zip(sizes, on_gpu, strict=True)]


def noise_of(sizes: list[int], on_gpu: list[bool], step: int = 3) -> list[Tensor]:
    params = parameters(sizes, on_gpu)
    GaussianNoise(1.0, 1.0, seed=SEED).add_(params, step)  # type: ignore[arg-type]
    return [parameter.grad for parameter in params if parameter.grad is not None]


def test_the_difference_of_two_gradients_on_two_devices_has_noise() -> None:
    on_gpu, on_cpu = noise_of([1000, 1000], [True, False])
    assert (on_gpu - on_cpu).std().item() == pytest.approx(2**0.5, rel=0.1)


@pytest.mark.parametrize("seed", range(20))
def test_a_parameter_has_the_same_noise_on_whatever_device_it_and_the_others_are(seed: int) -> None:
    choose = random.Random(seed)
    sizes = [choose.choice([1, 7, 8, 9, 100, 4096, 2**15]) for _ in range(choose.randint(2, 9))]
    expected = noise_of(sizes, [False] * len(sizes))
    found = noise_of(sizes, [choose.random() < 0.5 for _ in sizes])
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("on_gpu", [[True, False, True, False], [False, True, True, False], [True] * 4, [False] * 4])
def test_no_word_of_a_steps_stream_is_used_twice(monkeypatch: pytest.MonkeyPatch, on_gpu: list[bool]) -> None:
    """Of parameters in one part and in several: they are the stream, each word of it once, without a gap."""
    used: list[Tensor] = []
    transform = module.gaussians

    def listen(*words: Tensor) -> tuple[Tensor, Tensor]:
        used.extend(half.clone() for half in words)
        return transform(*words)

    monkeypatch.setattr(module, "gaussians", listen)
    noise_of([70_001, 13, 40_000, 2**15], on_gpu)
    words = torch.cat(used)
    assert len(words.unique()) == len(words) == 70_008 + 16 + 40_000 + 2**15
    stream = KeyedStream(Secret(SEED).key("noise", 3))
    assert sorted(words.tolist()) == sorted(stream.words(len(words)).tolist())


@pytest.mark.parametrize("words_together", [8, 2**10, 2**17])
def test_noise_is_the_same_however_many_words_are_formed_together(
    monkeypatch: pytest.MonkeyPatch, words_together: int
) -> None:
    sizes = [13, 70_001, 8, 1, 400]
    expected = noise_of(sizes, [True] * 5)
    monkeypatch.setattr(module, "_TOGETHER", words_together)
    assert all(torch.equal(a, b) for a, b in zip(noise_of(sizes, [True] * 5), expected, strict=True))
