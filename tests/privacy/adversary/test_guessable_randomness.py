"""The attacker knows the code and the generators, and guesses the seed or works the state out from what it sees.

PCG64 and PyTorch's generators are statistical: some outputs give the rest away, and PyTorch's CPU generator keeps 32
bits of any seed, so that all of them can be tried. Everything private comes from a stream of ChaCha20 under 256 bits.
"""

from __future__ import annotations

import hashlib
import math
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from torch import Tensor, nn

from doppel.privacy.noise import GaussianNoise
from doppel.privacy.private_step import PrivateStep
from doppel.privacy.sampling import PoissonSampler
from doppel.privacy.secret import KeyedStream, keyed_words
from doppel.privacy.spec import DPPlan

pytestmark = pytest.mark.filterwarnings("ignore:NOT PRIVATE")
SEED = bytes(range(32))


def words(message: str, num: int) -> np.ndarray:
    """The stream of the secret ``SEED`` for some purpose and counters, by OpenSSL alone."""
    key = hashlib.blake2b(message.encode(), key=SEED, digest_size=32).digest()
    return np.frombuffer(Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * num)), np.int64)


def private_step(seed: int | None) -> PrivateStep:
    spec = cast(DPPlan, SimpleNamespace(max_grad_norm=1.0, noise_multiplier=1.0, expected_batch_size=4, bands=1))
    return PrivateStep(nn.Linear(2, 2), spec, seed=seed)


def masks(seed: int, step: int = 3, rank: int = 0) -> Tensor:
    private_step(seed).seed_dropout(step, rank)
    return nn.functional.dropout(torch.ones(1000), 0.5)


def test_the_seed_of_dropout_does_not_give_its_masks() -> None:
    """The attacker is even told the 64 bits that a GPU is seeded with: the CPU's state is not made from them."""
    true = masks(5)
    told = private_step(5)._dropout.stream("dropout", 3, 0).getrandbits(64)
    for guess in (told, told % 2**32, told % 2**63):
        torch.manual_seed(guess)
        assert not torch.equal(nn.functional.dropout(torch.ones(1000), 0.5), true)
    assert torch.equal(masks(5), true)
    for other in (masks(6), masks(5, step=4), masks(5, rank=1)):
        assert 400 < int((other == true).sum()) < 600


def test_the_whole_state_of_dropout_is_drawn() -> None:
    """As many different first words as there are draws: no 32 bits stand behind them."""
    states = []
    for step in range(3):
        private_step(9).seed_dropout(step, 0)
        states.append(torch.get_rng_state()[24 : 24 + 624 * 8].view(torch.int64))
    everything = torch.cat(states)
    assert len(everything.unique()) == len(everything) == 3 * 624
    assert everything.min() >= 0 and everything.max() < 2**32
    stream = private_step(9)._dropout.stream("dropout", 0, 0)
    stream.getrandbits(64)
    assert states[0].tolist() == [int(w) % 2**32 for w in stream.words(624)]


def test_noise_is_a_gaussian_of_the_keyed_stream_and_of_nothing_else() -> None:
    """Recomputed with OpenSSL and NumPy, from the radius and the angle of Box and Muller."""
    noise = GaussianNoise(1.0, 1.0, seed=cast(int, SEED))
    sums = torch.zeros(800, dtype=torch.float64)
    noise.add_(sums, 0, step=7)
    drawn = words("noise,7", 13 * 64).reshape(13, 2, 32)
    radius = np.sqrt(-2 * np.log(np.abs((drawn[:, 0] | 1).astype(float)) / 2**63))
    angle = math.pi * drawn[:, 1].astype(float) / 2**63
    expected = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).reshape(-1)[:800]
    np.testing.assert_allclose(sums.numpy(), expected, rtol=0, atol=2.0**-30)


def test_coins_are_the_keyed_stream_and_nothing_else() -> None:
    sampler = PoissonSampler(5000, 0.1, seed=cast(int, SEED))
    drawn = words("sampling,1,2", 5000).view(np.uint64) / 2.0**64
    assert sampler.units_at(len(sampler) + 2) == np.flatnonzero(drawn < 0.1).tolist()


def test_a_device_without_openssl_draws_the_same_stream() -> None:
    """At any place."""
    stream = KeyedStream(SEED).words(800)
    for start, num in ((0, 800), (0, 5), (64, 100), (792, 8)):
        found = keyed_words(SEED, start, num, torch.device("cpu"))
        assert found.tolist() == stream[start : start + num].tolist()
