"""The attacker holds the optimiser's state and knows which float32 numbers a sum of noise can come out as.

Noise that is drawn in float32 and added in float32 has holes near zero. Where the target's gradient g stands below the
noise, a small result is a difference of two numbers of g's size, hence a multiple of their last bit; without the target
it is the noise itself, which near zero has finer bits. One look at Adam's first moment tells the two apart.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from doppel.privacy.clipping import PerSampleClipper
from doppel.privacy.noise import GaussianNoise
from doppel.privacy.private_step import noisy_mean

SIZE, BATCH_SIZE, BETA = 4096, 64, 0.9
LAST_BIT = 2.0**-30  # of a gradient of norm 1 whose 4096 entries are equal, just below 2^-6


def first_moment(is_there: bool) -> Tensor:
    """What Adam keeps of the row of a rare word after one private step; the target alone uses the word."""
    model = nn.Embedding(2, SIZE)
    optimizer = torch.optim.Adam(model.parameters(), betas=(BETA, 0.999))
    clipper = PerSampleClipper(model, max_grad_norm=1.0)
    with clipper.capture(2):
        model(torch.tensor([[0], [int(is_there)]])).sum().backward()
    clipper.accumulate()
    noisy_mean(model.parameters(), GaussianNoise(1.0, 1.0), BATCH_SIZE, step=0)
    optimizer.step()
    return optimizer.state[model.weight]["exp_avg"][1]


def share_on_the_coarse_grid(moment: Tensor) -> float:
    """Of the sums near zero, how many are multiples of the last bit that the target would have left."""
    grid = (moment.double() * BATCH_SIZE / (1 - BETA) / LAST_BIT).round()
    near_zero = (grid.abs() * LAST_BIT < 2.0**-9) & (moment != 0)
    of_grid = torch.lerp(torch.zeros(()), (grid * LAST_BIT / BATCH_SIZE).float(), 1 - BETA)
    return (of_grid == moment)[near_zero].double().mean().item()


def test_the_last_bits_of_a_noisy_sum_do_not_tell_whether_the_target_is_there() -> None:
    with_target = [share_on_the_coarse_grid(first_moment(True)) for _ in range(15)]
    without = [share_on_the_coarse_grid(first_moment(False)) for _ in range(15)]
    right = sum(share > 0.9 for share in with_target) + sum(share <= 0.9 for share in without)
    assert 8 <= right <= 22, f"the attacker is right in {right} of 30 runs"


@pytest.mark.filterwarnings("ignore:NOT PRIVATE")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("std", [0.3, 1.0, 24.0])
def test_every_sum_gives_numbers_of_one_grid_and_neighbours_of_it(std: float, dtype: torch.dtype) -> None:
    """And near zero, where float32 has finer numbers than the grid, all of its points occur."""
    grid = 2.0**-30 * 2.0 ** torch.tensor(std, dtype=torch.float64).log2().ceil()
    for total in (0.0, 0.1, -7.3 * std):
        sums = torch.full((200_000,), total, dtype=dtype)
        GaussianNoise(std, 1.0, seed=1).add_(sums, 0, step=0)
        near_zero = sums.double()[sums.abs() < std * 2.0**-7] / grid
        assert torch.equal(near_zero, near_zero.round())
        if abs(total) < std:
            lowest_bits = near_zero.long() & 7
            assert torch.bincount(lowest_bits, minlength=8).min() > len(near_zero) / 16
