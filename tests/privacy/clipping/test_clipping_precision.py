"""Half-precision autocast: as exact as ordinary training, norms in float32, the bound kept as computed."""

from __future__ import annotations

import math

import pytest
import torch
from clipping_reference import (
    Batch,
    Losses,
    build,
    clipped,
    head_losses,
    make_batch,
    mean_losses,
    naive,
    norm_of,
    relative_error,
    rows_of,
    trained,
)
from torch import Tensor, nn

HALVES = pytest.mark.parametrize(("half", "loss_scale"), [(torch.bfloat16, 1.0), (torch.float16, 1024.0)])
NAMES = pytest.mark.parametrize("name", ["gpt2-tied", "llama-untied", "llama-tied"])
HEADS: list[Losses] = [mean_losses, head_losses()]


def under_autocast(losses: Losses, half: torch.dtype) -> Losses:
    """Autocast around the forward pass only."""

    def cast(model: nn.Module, batch: Batch) -> Tensor:
        with torch.autocast("cpu", half):
            return losses(model, batch)

    return cast


def pair_of_models(name: str) -> tuple[nn.Module, nn.Module]:
    """The same weights in float32 and in float64."""
    single, exact = build(name, torch.float32), build(name)
    exact.load_state_dict(single.state_dict())
    return single, exact


@HALVES
@NAMES
def test_error_is_that_of_ordinary_training(name: str, half: torch.dtype, loss_scale: float) -> None:
    """Σ gᵢ, and Σ clip(gᵢ) compared with a naive loop under the same autocast, within 20 %; norms are better."""
    single, exact = pair_of_models(name)
    batch = make_batch(6)
    total, norms = naive(exact, batch, math.inf)
    bound = norms[norms > 0].median().item()
    clipped_total, _ = naive(exact, batch, bound)

    def scaled(model: nn.Module, batch: Batch) -> Tensor:
        return loss_scale * under_autocast(mean_losses, half)(model, batch)

    ordinary = [grad / loss_scale for grad in torch.autograd.grad(scaled(single, batch).sum(), trained(single))]
    ordinary_error = relative_error(ordinary, total)
    loop, _ = naive(single, batch, bound * loss_scale, losses=scaled)
    loop_error = relative_error([grad / loss_scale for grad in loop], clipped_total)
    assert 0.1 < ordinary_error / torch.finfo(half).eps < 10  # half precision is in use
    for losses in HEADS:
        cast = under_autocast(losses, half)
        found, _ = clipped(single, batch, math.inf, losses=cast, loss_scale=loss_scale)
        assert relative_error(found, total) <= 1.2 * ordinary_error
        found, found_norms = clipped(single, batch, bound, losses=cast, loss_scale=loss_scale)
        assert relative_error(found, clipped_total) <= 1.2 * loop_error
        assert found_norms.dtype is torch.float32
        assert torch.allclose(found_norms.double(), norms, rtol=0.7 * torch.finfo(half).eps, atol=0.0)


@HALVES
@pytest.mark.parametrize("name", ["gpt2-tied", "llama-untied"])
def test_autocast_around_backward_and_accumulate_changes_nothing(
    name: str, half: torch.dtype, loss_scale: float
) -> None:
    """As in Lightning's training step; with and without checkpointing."""
    model, batch = build(name, torch.float32), make_batch(4)
    for is_checkpointed in (False, True):
        if is_checkpointed:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        for losses in HEADS:
            cast = under_autocast(losses, half)
            inside, norms = clipped(model, batch, 1.0, losses=cast, loss_scale=loss_scale)
            with torch.autocast("cpu", half):
                around, norms_around = clipped(model, batch, 1.0, losses=losses, loss_scale=loss_scale)
            assert torch.equal(norms, norms_around)
            assert all(torch.equal(a, b) for a, b in zip(inside, around, strict=True))


@pytest.mark.parametrize(
    ("half", "loss_scale"), [(torch.bfloat16, 1.0), (torch.float16, 1024.0), (torch.float16, 65536.0)]
)
@pytest.mark.parametrize("is_checkpointed", [False, True])
@pytest.mark.parametrize("name", ["gpt2-tied", "llama-tied"])
def test_each_unit_alone_is_within_the_bound_as_computed(
    name: str, is_checkpointed: bool, half: torch.dtype, loss_scale: float
) -> None:
    """And uses nearly all of it."""
    model, batch = build(name, torch.float32), make_batch(6, length=16)
    if is_checkpointed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    for losses in HEADS:
        for unit, bound in [(0, 0.05), (2, 1e-3), (3, 1e-5)]:
            alone = rows_of(batch, slice(unit, unit + 1))
            found, norm = clipped(model, alone, bound, losses=under_autocast(losses, half), loss_scale=loss_scale)
            assert norm.item() > bound
            assert bound * (1 - 3 * torch.finfo(half).eps) <= norm_of(found) <= bound


@pytest.mark.parametrize("losses", HEADS)
def test_float16_unit_that_overflows_contributes_zero_and_the_others_do_not_change(losses: Losses) -> None:
    """A loss scale that is too large for one unit only: the step is not skipped, and holds the rest."""
    model, batch = build("gpt2-tied", torch.float32), make_batch(4)
    weights = torch.tensor([1.0, 1.0, 1e30, 1.0])
    cast = under_autocast(losses, torch.float16)
    found, norms = clipped(model, batch, 0.1, losses=lambda m, b: weights * cast(m, b), loss_scale=1024.0)
    assert torch.isfinite(norms).tolist() == [True, True, False, True]
    rest, rest_norms = clipped(model, rows_of(batch, [0, 1, 3]), 0.1, losses=cast, loss_scale=1024.0)
    assert torch.allclose(norms[[0, 1, 3]], rest_norms, rtol=1e-3)
    assert relative_error(found, rest) <= 2e-3
