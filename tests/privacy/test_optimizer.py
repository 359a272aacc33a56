"""The optimiser that knows its noise: linear in the gradients where it is bound, AdamW to the bit where it is not."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from doppel.privacy.optimizer import DPAdam

LR, SCALE = 0.02, 0.25
#: T, and by how much the rate of so many steps is raised: one over the mean of 1 - .9, 1 - .9², …
STEPS = 9
FACTOR = STEPS / sum(1 - 0.9**t for t in range(1, STEPS + 1))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))


def gradients(step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(p.shape, generator=generator) for p in model().parameters()]


def take(trained: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> list[Tensor]:
    for step in steps:
        for parameter, gradient in zip(trained.parameters(), gradients(step), strict=True):
            parameter.grad = gradient
        optimizer.step()
    return [p.detach().clone() for p in trained.parameters()]


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_without_noise_it_is_adamw_to_the_bit(weight_decay: float) -> None:
    own, other = model(), model()
    found = take(own, DPAdam(own.parameters(), lr=LR, weight_decay=weight_decay), range(9))
    expected = take(other, torch.optim.AdamW(other.parameters(), lr=LR, weight_decay=weight_decay), range(9))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_weight_moves_by_the_mean_gradient_over_the_scale_of_the_noise() -> None:
    """Momentum .9, dampened, from zero, and no bias correction but the same factor for all steps."""
    own = model()
    optimizer = DPAdam(own.parameters(), lr=LR)
    optimizer.bind(SCALE, STEPS)
    found = take(own, optimizer, range(9))
    for start, end, *given in zip(model().parameters(), found, *map(gradients, range(9)), strict=True):
        weight, mean = start.detach().double(), torch.zeros(start.shape, dtype=torch.float64)
        for gradient in given:
            mean = 0.9 * mean + 0.1 * gradient.double()
            weight = weight - LR * FACTOR * mean / SCALE
        torch.testing.assert_close(end.double(), weight, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("steps", [1, 18, 59, 400])
def test_a_constant_gradient_moves_a_weight_as_far_at_any_number_of_steps(steps: int) -> None:
    weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = DPAdam([weight], lr=LR)
    optimizer.bind(SCALE, steps)
    for _ in range(steps):
        weight.grad = torch.full_like(weight, SCALE)
        optimizer.step()
    assert weight.item() == pytest.approx(-LR * steps)


def test_it_is_linear_so_what_a_later_step_takes_back_is_taken_back() -> None:
    """The same sum of gradients in another order of signs: Adam ends elsewhere."""

    def end(make: Any) -> Tensor:
        weight = nn.Parameter(torch.zeros(1))
        optimizer = make([weight])
        for gradient in (8.0, -8.0, *[0.0] * 100):
            weight.grad = torch.tensor([gradient])
            optimizer.step()
        return weight.detach()

    def bound(parameters: Any) -> DPAdam:
        optimizer = DPAdam(parameters, lr=LR)
        optimizer.bind(SCALE, STEPS)
        return optimizer

    assert end(bound).abs() < 1e-5 < 1e-3 < end(DPAdam).abs()


def test_weight_decay_is_decoupled() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = DPAdam([weight], lr=LR, weight_decay=0.5)
    optimizer.bind(SCALE, STEPS)
    weight.grad = torch.zeros(3)
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.full((3,), 1 - LR * 0.5))


def test_a_checkpoint_holds_the_mean_alone_and_goes_on_to_the_bit() -> None:
    whole, parts = model(), model()
    optimizers = [DPAdam(trained.parameters(), lr=LR) for trained in (whole, parts)]
    for optimizer in optimizers:
        optimizer.bind(SCALE, STEPS)
    expected = take(whole, optimizers[0], range(6))
    take(parts, optimizers[1], range(3))
    kept = copy.deepcopy(optimizers[1].state_dict())
    assert all(list(state) == ["exp_avg"] for state in kept["state"].values()) and len(kept["state"]) == 4
    again = DPAdam(parts.parameters(), lr=LR)
    again.load_state_dict(kept)
    again.bind(SCALE, STEPS)
    assert all(torch.equal(a, b) for a, b in zip(take(parts, again, range(3, 6)), expected, strict=True))


def test_schedules_closures_and_weights_without_a_gradient_are_as_in_any_optimiser() -> None:
    used, unused = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    optimizer = DPAdam([{"params": [unused]}, {"params": [used], "lr": 1.0}], lr=LR)
    optimizer.bind(SCALE, STEPS)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 - step)

    def closure() -> float:
        used.grad = torch.ones(1)
        return 3.0

    assert optimizer.step(closure) == 3.0
    assert used.item() == pytest.approx(-0.1 * FACTOR / SCALE) and unused.item() == 0.0
    schedule.step()
    optimizer.step()
    assert used.item() == pytest.approx(-0.1 * FACTOR / SCALE)


def test_a_training_that_adamw_has_begun_goes_on_as_adamw() -> None:
    """Its checkpoint is of an older version, whose default was AdamW."""
    weight, other = (nn.Parameter(torch.ones(3)) for _ in range(2))
    begun, own = torch.optim.AdamW([weight], lr=LR, weight_decay=0.0), DPAdam([other], lr=LR)
    weight.grad = torch.tensor([1.0, -2.0, 0.5])
    begun.step()
    other.data.copy_(weight.data)
    own.load_state_dict(copy.deepcopy(begun.state_dict()))
    own.bind(0.3, STEPS)
    weight.grad = other.grad = torch.tensor([0.2, 1.0, -1.0])
    begun.step()
    own.step()
    assert torch.equal(weight, other)
