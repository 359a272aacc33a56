"""The noise has the stated scale, is white, is the same on all ranks, and its secret is written nowhere."""

from __future__ import annotations

import copy
import math
import pickle
import warnings

import pytest
import torch
from torch import Tensor, nn

from doppel.privacy.noise import GaussianNoise
from doppel.privacy.secret import Secret

pytestmark = pytest.mark.filterwarnings("ignore:NOT PRIVATE")


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.zeros(*shape, dtype=dtype))


def draw(noise: GaussianNoise, step: int, size: int = 1000, dtype: torch.dtype = torch.float32) -> Tensor:
    parameter = zeros(size, dtype=dtype)
    noise.add_([parameter], step=step)
    assert parameter.grad is not None
    return parameter.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("sigma", "bound"), [(0.9, 0.1), (2.0, 1.0)])
def test_scale_is_sigma_times_bound(sigma: float, bound: float, dtype: torch.dtype) -> None:
    """Standard deviation and mean over n draws are within 4 standard errors of what is stated."""
    noise = GaussianNoise(sigma, bound, seed=1)
    parameter, num_steps = zeros(100, 100, dtype=dtype), 20
    samples = []
    for step in range(num_steps):
        parameter.grad = None
        noise.add_([parameter], step=step)
        assert parameter.grad is not None and parameter.grad.dtype is dtype
        samples.append(parameter.grad.double().flatten())
    values, std = torch.cat(samples), sigma * bound
    assert abs(values.std().item() - std) < 4 * std / math.sqrt(2 * len(values))
    assert abs(values.mean().item()) < 4 * std / math.sqrt(len(values))
    assert abs(((values / std) ** 4).mean().item() - 3.0) < 4 * math.sqrt(96 / len(values))  # Gaussian tails


def test_noise_is_white_across_steps_and_parameters() -> None:
    noise, num_steps, size = GaussianNoise(1.0, 1.0, seed=2), 30, 2000
    rows = []
    for step in range(num_steps):
        first, second = zeros(size), zeros(size)
        noise.add_([first, second], step=step)
        rows += [first.grad, second.grad]
    draws = torch.stack(rows).double()  # type: ignore[arg-type]
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


def test_noise_is_added_to_the_gradient_in_parameter_order() -> None:
    noise = GaussianNoise(1.0, 1.0, seed=4)
    with_grad, without, frozen = zeros(3, 2), zeros(5), nn.Parameter(torch.zeros(2), requires_grad=False)
    with_grad.grad = torch.full((3, 2), 10.0)
    noise.add_([with_grad, frozen, without, with_grad], step=0)
    first, second = zeros(3, 2), zeros(5)
    noise.add_([first, second], step=0)
    assert first.grad is not None and second.grad is not None and torch.equal(first.grad.flatten(), draw(noise, 0, 6))
    assert with_grad.grad is not None and without.grad is not None and frozen.grad is None
    assert torch.allclose(with_grad.grad.flatten(), 10.0 + first.grad.flatten())
    assert torch.equal(without.grad, second.grad)
    assert not torch.equal(second.grad, draw(noise, 0, 5))


def test_zero_multiplier_adds_nothing_and_fills_missing_gradients() -> None:
    parameter = zeros(4)
    GaussianNoise(0.0, math.inf).add_([parameter], step=0)
    assert parameter.grad is not None and not parameter.grad.any()


def test_half_precision_parameters_get_noise_of_their_dtype() -> None:
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
