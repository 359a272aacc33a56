"""Weights as layers multiply by them: the numbers of autocast, cast once a step."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from doppel.privacy.clipping import PerSampleClipper


def network(frozen: bool) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 24), nn.GELU(), nn.Linear(24, 24, bias=False), nn.Linear(24, 5))
    model[2].weight.requires_grad_(not frozen)
    return model


def clipped(clipper: PerSampleClipper, model: nn.Module, x: Tensor) -> list[Tensor]:
    """Losses and clipped gradients of four rows, under bfloat16 autocast."""
    model.zero_grad()
    with clipper.capture(len(x)), torch.autocast("cpu", torch.bfloat16):
        losses = model(x).square().sum(1)
        losses.sum().backward()
    norms = clipper.accumulate()
    return [losses.detach(), norms, *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("frozen", [False, True])
def test_the_numbers_are_those_of_autocast(frozen: bool) -> None:
    model, x = network(frozen), torch.randn(4, 8)
    with torch.autocast("cpu", torch.bfloat16):
        losses = model(x).square().sum(1)
    grads = torch.autograd.grad(losses.sum(), [p for p in model.parameters() if p.requires_grad])
    found = clipped(PerSampleClipper(model, 1e9), model, x)
    assert torch.equal(found[0], losses)
    for mine, grad in zip(found[2:], grads, strict=True):
        torch.testing.assert_close(mine, grad, rtol=2**-6, atol=2**-6)


class _Copies(TorchDispatchMode):
    """Counts the foreach copies: one makes the halves of all weights."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.found[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def test_a_step_casts_weights_once_and_the_next_one_what_was_trained() -> None:
    model, x = network(frozen=True), torch.randn(4, 8)
    clipper, fresh = PerSampleClipper(model, 0.5), network(frozen=True)
    for step in range(2):
        for parameter in model.parameters():
            parameter.data.add_(0.25)  # a write that leaves the version as it was
        with _Copies() as copies:
            clipper.begin_step()
            found = [clipped(clipper, model, x) for _ in range(3)]
        clipper.end_step()
        assert copies.found["_foreach_copy_"] == 1, step
        fresh.load_state_dict(model.state_dict())
        expected = clipped(PerSampleClipper(fresh, 0.5), fresh, x)
        assert all(torch.equal(a, b) for each in found for a, b in zip(each, expected, strict=True))


@pytest.mark.parametrize("half", [False, True])
def test_weights_that_change_between_captures_are_seen_without_a_step(half: bool) -> None:
    """Written in place, and with another storage in their place."""
    model, x = network(frozen=False), torch.randn(4, 8)
    clipper = PerSampleClipper(model, 0.5)
    for change in (lambda p: p.data.add_(0.25), lambda p: setattr(p, "data", p.data.clone() * 2)):
        for parameter in model.parameters():
            change(parameter)
        fresh = network(frozen=False)
        fresh.load_state_dict(model.state_dict())
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            found, expected = clipped(clipper, model, x), clipped(PerSampleClipper(fresh, 0.5), fresh, x)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_nothing_is_left_on_the_model() -> None:
    model = network(frozen=True)
    before = [set(vars(module)) for module in model.modules()]
    with pytest.raises(ZeroDivisionError), PerSampleClipper(model, 1.0).capture(4):
        assert "forward" in vars(model[0])
        _ = 1 / 0
    assert [set(vars(module)) for module in model.modules()] == before
