"""The noise has the stated scale, is white, is the same on all ranks, and its secret is written nowhere."""

from __future__ import annotations

import copy
import math
import pickle
import warnings

import pytest
import torch
from torch import Tensor

from doppel.privacy.noise import GaussianNoise
from doppel.privacy.secret import Secret

pytestmark = pytest.mark.filterwarnings("ignore:NOT PRIVATE")


def draw(
    noise: GaussianNoise, step: int, size: int = 1000, dtype: torch.dtype = torch.float32, place: int = 0
) -> Tensor:
    flat = torch.zeros(size, dtype=dtype)
    noise.add_(flat, place, step)
    return flat


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("sigma", "bound"), [(0.9, 0.1), (2.0, 1.0)])
def test_scale_is_sigma_times_bound(sigma: float, bound: float, dtype: torch.dtype) -> None:
    """Standard deviation and mean over n draws are within 4 standard errors of what is stated."""
    noise = GaussianNoise(sigma, bound, seed=1)
    samples = [draw(noise, step, 10_000, dtype) for step in range(20)]
    assert all(sample.dtype is dtype for sample in samples)
    values, std = torch.cat(samples).double(), sigma * bound
    assert abs(values.std().item() - std) < 4 * std / math.sqrt(2 * len(values))
    assert abs(values.mean().item()) < 4 * std / math.sqrt(len(values))
    assert abs(((values / std) ** 4).mean().item() - 3.0) < 4 * math.sqrt(96 / len(values))  # Gaussian tails


def test_noise_is_white_across_steps_and_places() -> None:
    noise, num_steps, size = GaussianNoise(1.0, 1.0, seed=2), 30, 2000
    rows = [draw(noise, step, size, place=place) for step in range(num_steps) for place in (0, 2048)]
    draws = torch.stack(rows).double()
    correlation = (draws @ draws.T / size).fill_diagonal_(0.0)
    assert correlation.abs().max() < 5 / math.sqrt(size)
    num_pairs = len(draws) * (len(draws) - 1)
    assert correlation.square().sum().item() / num_pairs == pytest.approx(1 / size, rel=0.2)
    shifted = (draws[:, 1:] * draws[:, :-1]).mean().item()
    assert abs(shifted) < 4 / math.sqrt(draws.numel())


def test_same_secret_and_step_give_the_same_noise_and_no_other() -> None:
    assert torch.equal(draw(GaussianNoise(1.0, 1.0, seed=3), 7), draw(GaussianNoise(1.0, 1.0, seed=3), 7))
    noise = GaussianNoise(1.0, 1.0)
    expected = draw(noise, 7)
    draw(noise, 8)
    torch.manual_seed(0)
    assert torch.equal(draw(noise, 7), expected)
    for other in (draw(noise, 8), draw(GaussianNoise(1.0, 1.0), 7), draw(GaussianNoise(1.0, 1.0, seed=3), 7)):
        assert abs((other * expected).mean().item()) < 5 / math.sqrt(1000)


def test_global_seed_neither_steers_nor_feels_the_noise() -> None:
    torch.manual_seed(0)
    first = draw(GaussianNoise(1.0, 1.0), 0)
    after = torch.rand(1)
    torch.manual_seed(0)
    assert torch.equal(torch.rand(1), after)
    torch.manual_seed(0)
    assert not torch.equal(draw(GaussianNoise(1.0, 1.0), 0), first)


def test_seeds_that_agree_in_their_low_32_bits_differ() -> None:
    """PyTorch's CPU generator would not tell them apart."""
    first, second = GaussianNoise(1.0, 1.0, seed=1), GaussianNoise(1.0, 1.0, seed=1 + 2**32)
    assert not torch.equal(draw(first, 0), draw(second, 0))


def test_ranks_that_share_the_secret_add_the_same_noise() -> None:
    ranks = [GaussianNoise(1.0, 1.0) for _ in range(2)]
    assert not torch.equal(draw(ranks[0], 0), draw(ranks[1], 0))
    sent: list[Tensor] = []

    def broadcast(own: Tensor) -> Tensor:
        sent.append(own.clone())
        return sent[0]

    for noise in ranks:
        noise.share_secret(broadcast)
    for step in range(3):
        assert torch.equal(draw(ranks[0], step), draw(ranks[1], step))


def test_noise_of_a_coordinate_is_a_function_of_its_place() -> None:
    """Whatever is drawn with it, and added to what is there."""
    noise = GaussianNoise(1.0, 1.0, seed=4)
    whole = draw(noise, 0, 1000)
    for start, size in ((0, 1), (64, 5), (448, 64), (960, 40), (0, 960)):
        assert torch.equal(draw(noise, 0, size, place=start), whole[start : start + size])
    sums = torch.full((1000,), 10.0)
    noise.add_(sums, 0, step=0)
    torch.testing.assert_close(sums, 10.0 + whole)


@pytest.mark.parametrize("place", [1, 8, 63, 65])
def test_a_place_between_two_parts_of_the_stream_is_refused(place: int) -> None:
    with pytest.raises(ValueError, match=f"at place {place}.*multiple of 64"):
        draw(GaussianNoise(1.0, 1.0), 0, place=place)
    with pytest.raises(ValueError, match="contiguous"):
        GaussianNoise(1.0, 1.0).add_(torch.zeros(4, 2)[:, 0], 0, step=0)


@pytest.mark.parametrize("std", [1e-12, 1e-30, 2.0**-100])
def test_noise_far_below_the_sum_leaves_it_as_it_is(std: float) -> None:
    """Up to a multiple of the grid: sums that are on it stay so, however many points of it lie below them."""
    sums = torch.randn(1000, dtype=torch.float64)
    noisy = sums.clone()
    GaussianNoise(std, 1.0, seed=5).add_(noisy, 0, step=0)
    grid = 2.0 ** (math.ceil(math.log2(std)) - 30)
    assert ((noisy - sums).abs() <= 7 * std + grid + 2.0**-52 * sums.abs()).all()
    single = sums.float()
    GaussianNoise(std, 1.0, seed=5).add_(single, 0, step=0)
    assert torch.equal(single, sums.float())


def test_zero_multiplier_adds_nothing() -> None:
    flat = torch.ones(4)
    GaussianNoise(0.0, math.inf).add_(flat, 0, step=0)
    assert torch.equal(flat, torch.ones(4))


def test_half_precision_sums_get_noise_of_their_dtype() -> None:
    noise = draw(GaussianNoise(1.0, 1.0, seed=5), 0, 10_000, torch.bfloat16)
    assert noise.dtype is torch.bfloat16
    assert noise.float().std().item() == pytest.approx(1.0, rel=0.03)


def test_fixed_seed_warns_loudly_and_entropy_does_not() -> None:
    with pytest.warns(UserWarning, match="NOT PRIVATE"):
        GaussianNoise(1.0, 1.0, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GaussianNoise(1.0, 1.0)


def test_secret_is_in_no_repr_pickle_copy_or_dict() -> None:
    noise = GaussianNoise(1.0, 1.0)
    sent: list[bytes] = []
    noise.share_secret(lambda own: (sent.append(bytes(own.tolist())), own)[1])
    secret = sent[0]
    shown = repr(noise) + repr(vars(noise)) + str(noise)
    assert (
        secret.hex() not in shown and repr(secret) not in shown and str(int.from_bytes(secret, "little")) not in shown
    )
    assert not hasattr(noise, "state_dict")
    for leak in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="secret"):
            leak(Secret())
    for leak in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="secret"):
            leak(noise)


def test_broadcast_of_something_else_is_refused() -> None:
    with pytest.raises(ValueError, match="32"):
        Secret().share(lambda own: own[:4])


@pytest.mark.parametrize(
    ("sigma", "bound"), [(-1.0, 1.0), (math.nan, 1.0), (math.inf, 1.0), (1.0, 0.0), (1.0, math.inf)]
)
def test_arguments_out_of_range_are_refused(sigma: float, bound: float) -> None:
    with pytest.raises(ValueError, match=r"noise_multiplier|max_grad_norm"):
        GaussianNoise(sigma, bound)
