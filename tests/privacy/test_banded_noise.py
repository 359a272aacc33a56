"""Correlated noise solves C x = z, is the same on all ranks, and hides a unit as its rounds are accounted for."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import beta
from torch import Tensor

from doppel.errors import PrivateTrainingError
from doppel.privacy.accounting import Mechanism, calibrate_noise_multiplier
from doppel.privacy.banded_noise import FINE_BITS, BandedNoise
from doppel.privacy.noise import GaussianNoise, add_by_tensors
from doppel.privacy.private_step import noisy_mean
from doppel.privacy.sampling import PoissonSampler

pytestmark = pytest.mark.filterwarnings("ignore:NOT PRIVATE")
SIGMA, BOUND, SEED = 0.9, 2.7, 3


def coefficients(bands: int) -> list[float]:
    """Of norm 1, falling slowly, as the best ones do."""
    powers = [0.9**i for i in range(bands)]
    return [value / math.hypot(*powers) for value in powers]


def strategy(bands: int, num_steps: int, first: int = 0, end: int | None = None) -> NDArray[np.float64]:
    """C of a segment that begins at ``first`` and stops before ``end``, of a training of ``num_steps``."""
    matrix = np.zeros((num_steps - first, num_steps - first))
    for i, value in enumerate(coefficients(bands)):
        matrix += np.diag(np.full(max(num_steps - first - i, 0), value), -i)[: num_steps - first, : num_steps - first]
    matrix /= np.linalg.norm(matrix, axis=0)
    return matrix[: (end or num_steps) - first]


def independent(step: int, size: int, place: int = 0) -> Tensor:
    """σC z of a step, as fine as it is drawn."""
    noise = GaussianNoise(SIGMA, BOUND, seed=SEED)
    drawn = torch.zeros(size, dtype=torch.float64)
    add_by_tensors(drawn, noise._secret.key("noise", step), place, noise.std, noise.grid(FINE_BITS))
    return drawn


def draw(noise: GaussianNoise, steps: range, size: int = 200, place: int = 0, value: float = 0.0) -> Tensor:
    """[steps, size]."""
    found = torch.full((len(steps), size), value, dtype=torch.float64)
    for row, step in zip(found, steps, strict=True):
        noise.add_(row, place, step)
    return found


@pytest.mark.parametrize(("bands", "first", "num_steps"), [(2, 0, 9), (4, 0, 11), (8, 5, 30), (8, 0, 3), (16, 7, 20)])
def test_the_noise_of_a_segment_solves_c_x_is_z(bands: int, first: int, num_steps: int) -> None:
    noise, steps = BandedNoise(SIGMA, BOUND, coefficients(bands), num_steps, seed=SEED), range(first, num_steps)
    x = draw(noise, steps).numpy()
    z = torch.stack([independent(step, 200) for step in steps]).numpy()
    np.testing.assert_allclose(strategy(bands, num_steps, first) @ x, z, atol=1e-7)


def test_it_is_added_to_sums_of_any_type() -> None:
    expected = draw(BandedNoise(SIGMA, BOUND, coefficients(4), 6, seed=SEED), range(6))
    noise = BandedNoise(SIGMA, BOUND, coefficients(4), 6, seed=SEED)
    for step in range(6):
        sums = torch.full((200,), 10.0)
        noise.add_(sums, 0, step)
        torch.testing.assert_close(sums, (10.0 + expected[step]).float(), atol=1e-6, rtol=0)


def test_the_noise_of_a_coordinate_is_a_function_of_its_place() -> None:
    """However the coordinates are cut into buffers, and whatever order these come in."""
    whole = draw(BandedNoise(SIGMA, BOUND, coefficients(4), 6, seed=SEED), range(6), 1000)
    parts = BandedNoise(SIGMA, BOUND, coefficients(4), 6, seed=SEED)
    for step in range(6):
        for start, size in ((960, 40), (0, 64), (64, 896)):
            found = torch.zeros(size, dtype=torch.float64)
            parts.add_(found, start, step)
            assert torch.equal(found, whole[step, start : start + size])


@pytest.mark.parametrize("step", [4, 6, 7, 0])
def test_a_skipped_or_repeated_step_is_refused(step: int) -> None:
    noise = BandedNoise(SIGMA, BOUND, coefficients(4), 20, seed=SEED)
    draw(noise, range(3, 5))
    with pytest.raises(PrivateTrainingError, match=f"step {step} of 20 follows step 4.*in order"):
        draw(noise, range(step, step + 1))
    draw(noise, range(3, 4), place=1024)  # another buffer has steps of its own
    draw(noise, range(5, 6))


def test_a_step_beyond_the_last_would_make_columns_longer_and_is_refused() -> None:
    noise = BandedNoise(SIGMA, BOUND, coefficients(4), 6, seed=SEED)
    draw(noise, range(6))
    with pytest.raises(PrivateTrainingError, match="step 6 of 6"):
        draw(noise, range(6, 7))
    with pytest.raises(PrivateTrainingError, match="step 6 of 6"):
        draw(BandedNoise(SIGMA, BOUND, coefficients(4), 6, seed=SEED), range(6, 7))


@pytest.mark.parametrize("given", [[-0.6, 0.8], [0.0, 1.0], [math.nan, 1.0], [1.0, math.inf]])
def test_coefficients_without_an_inverse_are_refused(given: list[float]) -> None:
    with pytest.raises(ValueError, match="coefficients"):
        BandedNoise(SIGMA, BOUND, given, 10)


def test_the_norm_of_the_coefficients_does_not_matter() -> None:
    """A plan rounds them: columns of C have norm 1 all the same."""
    expected = draw(BandedNoise(SIGMA, BOUND, coefficients(4), 9, seed=SEED), range(9))
    found = draw(BandedNoise(SIGMA, BOUND, [2 * c for c in coefficients(4)], 9, seed=SEED), range(9))
    torch.testing.assert_close(found, expected, atol=1e-7, rtol=0)


def test_a_multiplier_of_zero_adds_nothing() -> None:
    assert not draw(BandedNoise(0.0, math.inf, coefficients(4), 6), range(6)).any()


def test_every_point_of_the_grid_is_reached_from_every_sum() -> None:
    """Were z on the grid of the sums, the first step's noise, z / .6, would miss two of five points."""
    grid = GaussianNoise(1.0, 1.0).grid()
    for value in (0.0, 0.1, 0.4 * grid):
        noise = BandedNoise(1.0, 1.0, [0.6, 0.8], 9, seed=SEED)
        for row in draw(noise, range(9), 20_000, value=value) / grid:
            assert torch.equal(row, row.round())
            assert torch.bincount(row.long() % 5, minlength=5).min() > 20_000 / 5 * 0.9


# ------------------------------------------------------------------------------------------------- the best attack
NUM_UNITS, NUM_STEPS, BANDS, RATE, EPSILON, DELTA = 20_000, 10, 5, 0.15, 2.0, 0.05


def attack(
    noise: float = 1.0, segments: tuple[int, ...] = (0,), sampler_type: type[PoissonSampler] = PoissonSampler
) -> float:
    """Bound ε from below by the best guess who was there, from all noisy sums: each unit has a coordinate of its own,
    and so a run is as many draws as units.

    Args:
        noise: Factor on the noise that was promised.
        segments: First steps; each has a sampler and noise of its own.
        sampler_type: What draws units.
    """
    ends = [*segments[1:], NUM_STEPS]
    num_rounds = sum(math.ceil((end - first) / BANDS) for first, end in zip(segments, ends, strict=True))
    sigma = calibrate_noise_multiplier(
        lambda sigma: [Mechanism(BANDS * RATE, sigma, num_rounds)], EPSILON, DELTA, "pld"
    )
    coins = torch.rand(NUM_UNITS, generator=torch.Generator().manual_seed(SEED)) < 0.5
    table = torch.nn.Parameter(torch.zeros(NUM_UNITS, dtype=torch.float64))
    scores = np.zeros(NUM_UNITS)
    for first, end in zip(segments, ends, strict=True):
        gaussian = BandedNoise(noise * sigma, BOUND, coefficients(BANDS), NUM_STEPS, seed=SEED + first)
        sampler = sampler_type(NUM_UNITS, RATE, 5, SEED + first, BANDS)
        sums = []
        for step in range(first, end):
            drawn = torch.tensor(sampler.units_at(step), dtype=torch.int64)
            table.grad = torch.zeros_like(table)
            table.grad[drawn] = BOUND * coins[drawn].double()
            noisy_mean([table], gaussian, 1, step)
            assert table.grad is not None
            sums.append(table.grad.numpy() / BOUND)
        matrix = strategy(BANDS, NUM_STEPS, first, end)[:, : end - first]
        released = matrix @ np.stack(sums)  # C g + σ z
        told = (matrix.T @ released - np.square(matrix).sum(0)[:, None] / 2) / (noise * sigma) ** 2
        ratios = np.log1p(BANDS * RATE * np.expm1(told))  # of each step, for a unit of its group
        groups = [
            ratios[[t for t in range(end - first) if (t + first) % BANDS == group]].sum(0) for group in range(BANDS)
        ]
        scores += np.log(np.mean(np.exp(groups), axis=0))  # the attacker does not know the group
    return lower_bound(scores, coins.numpy())


def lower_bound(scores: NDArray[np.float64], coins: NDArray[np.bool_]) -> float:
    """ε ≥ ln((P[told | there] - δ) / P[told | not there]), at 99 % confidence over some fixed thresholds."""
    bounds, thresholds = [0.0], (-0.5, 0.0, 0.5, 1.0, 1.5)
    for sign in (1, -1):
        for threshold in thresholds:
            told = sign * scores > threshold
            right, wrong = told[coins == (sign > 0)], told[coins == (sign < 0)]
            error = 0.01 / (4 * len(thresholds))
            low = beta.ppf(error, right.sum(), len(right) - right.sum() + 1)
            high = beta.ppf(1 - error, wrong.sum() + 1, len(wrong) - wrong.sum())
            bounds.append(math.log(max(low - DELTA, 1e-9) / high))
    return max(bounds)


@pytest.mark.parametrize(("segments", "share"), [((0,), 0.6), ((0, 5), 0.4), ((0, 3, 8), 0.15)], ids=str)
def test_the_best_attack_on_ten_steps_finds_about_what_their_rounds_cost_and_no_more(
    segments: tuple[int, ...], share: float
) -> None:
    """A segment that ends cuts off columns, and draws fewer units in its last round."""
    assert share * EPSILON < attack(segments=segments) <= EPSILON


def test_the_attack_finds_a_noise_that_is_too_small() -> None:
    assert attack(noise=0.6) > EPSILON


class Anywhere(PoissonSampler):
    """Draws a unit at any step, at the rate of its group."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.bands, self.sample_rate = 1, self.bands * self.sample_rate


def test_the_attack_finds_a_sampler_without_groups() -> None:
    assert attack(sampler_type=Anywhere) > EPSILON
