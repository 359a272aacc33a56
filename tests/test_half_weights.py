"""Copies of weights in half precision: the numbers of autocast, made once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from doppel.half_weights import HalfWeights
from doppel.privacy.clipping import PerSampleClipper


def network(frozen: bool) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 24), nn.GELU(), nn.Linear(24, 24, bias=False), nn.Linear(24, 5))
    model[2].weight.requires_grad_(not frozen)
    return model


def clipped(model: nn.Module, x: Tensor) -> list[Tensor]:
    """Losses and clipped gradients of four rows, under bfloat16 autocast."""
    model.zero_grad()
    clipper = PerSampleClipper(model, max_grad_norm=0.5)
    with clipper.capture(len(x)), torch.autocast("cpu", torch.bfloat16):
        losses = model(x).square().sum(1)
        losses.sum().backward()
    norms = clipper.accumulate()
    return [losses.detach(), norms, *(p.grad for p in model.parameters() if p.grad is not None)]


def ordinary(model: nn.Module, x: Tensor) -> list[Tensor]:
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(x).square().sum()
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("step", [clipped, ordinary])
def test_the_numbers_are_those_of_autocast(step: Callable[..., list[Tensor]], frozen: bool) -> None:
    model, x = network(frozen), torch.randn(4, 8)
    plain = [value.clone() for value in step(model, x)]
    weights = HalfWeights(model)
    for _ in range(2):
        with weights.in_use():
            found = step(model, x)
        assert all(torch.equal(a, b) for a, b in zip(plain, found, strict=True))


def test_a_step_casts_each_weight_once_and_the_next_one_what_was_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = network(frozen=True), torch.randn(4, 8)
    weights, made = HalfWeights(model), []
    detach = nn.Parameter.detach
    monkeypatch.setattr(nn.Parameter, "detach", lambda self: made.append(tuple(self.shape)) or detach(self))
    clipper = PerSampleClipper(model, max_grad_norm=0.5)
    for _ in range(2):
        with weights.in_use():
            for _ in range(3):
                with clipper.capture(4), torch.autocast("cpu", torch.bfloat16):
                    model(x).square().sum().backward()
                clipper.accumulate()
    assert sorted(made) == [(5, 24), (5, 24), (24, 8), (24, 8)], "and none of a frozen one"


def test_a_trained_weight_is_copied_anew_after_an_optimiser_that_nobody_counts() -> None:
    model, x = network(frozen=True), torch.randn(4, 8)
    weights = HalfWeights(model)
    with weights.in_use():
        clipped(model, x)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data.add_(0.25)  # a write that leaves the version as it was
    plain = [value.clone() for value in clipped(model, x)]
    with weights.in_use():
        assert all(torch.equal(a, b) for a, b in zip(plain, clipped(model, x), strict=True))


def test_nothing_is_left_on_the_model() -> None:
    model = network(frozen=True)
    before = [set(vars(module)) for module in model.modules()]
    with pytest.raises(ZeroDivisionError), HalfWeights(model).in_use():
        _ = 1 / 0
    assert [set(vars(module)) for module in model.modules()] == before
