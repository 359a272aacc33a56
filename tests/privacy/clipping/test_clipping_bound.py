"""The bound on each unit, the loss scale, and units whose gradient is not finite."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from clipping_reference import (
    Losses,
    assert_close,
    build,
    clipped,
    grads_of,
    head_losses,
    make_batch,
    mean_losses,
    naive,
    norm_of,
    rows_of,
    toy_losses,
)
from torch import Tensor, nn

from doppel.privacy.clipping import PerSampleClipper

HEADS = pytest.mark.parametrize("losses", [mean_losses, head_losses()])


# ------------------------------------------------------------------------------ the bound
@HEADS
@pytest.mark.parametrize("name", ["gpt2-tied", "llama-untied"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_each_unit_alone_is_within_the_bound_strictly(name: str, dtype: torch.dtype, losses: Losses) -> None:
    model, batch, bound = build(name, dtype), make_batch(6), 0.05
    clipper = PerSampleClipper(model, bound)
    for unit in range(6):
        model.zero_grad()
        with clipper.capture(1):
            losses(model, rows_of(batch, slice(unit, unit + 1))).sum().backward()
        norm = clipper.accumulate()
        found = norm_of(grads_of(model))
        assert found <= bound
        assert found == pytest.approx(bound if norm.item() > bound else norm.item(), rel=1e-4)


@pytest.mark.parametrize("rows_per_unit", [1, 2])
def test_adding_a_unit_moves_the_sum_by_at_most_the_bound(rows_per_unit: int) -> None:
    model, batch, bound = build("gpt2-tied"), make_batch(6), 0.1
    with_unit, _ = clipped(model, batch, bound, rows_per_unit)
    without, _ = clipped(model, rows_of(batch, slice(0, 6 - rows_per_unit)), bound, rows_per_unit)
    moved = norm_of([a - b for a, b in zip(with_unit, without, strict=True)])
    assert 0.9 * bound <= moved <= bound * (1 + 1e-12)


# ------------------------------------------------------------------------------ scale, inf and nan
@HEADS
@pytest.mark.parametrize("scale", [1024.0, 1 / 7])
def test_loss_scale_is_taken_out_again(losses: Losses, scale: float) -> None:
    model, batch = build("gpt2-tied"), make_batch(5)
    expected = clipped(model, batch, 0.5)
    assert_close(clipped(model, batch, 0.5, losses=losses, loss_scale=scale), expected)


@HEADS
@pytest.mark.parametrize("length", [12, 48])
@pytest.mark.parametrize("name", ["gpt2-tied", "llama-untied"])
@pytest.mark.parametrize("factor", [math.inf, math.nan])
def test_nonfinite_unit_contributes_zero_and_is_counted(name: str, length: int, factor: float, losses: Losses) -> None:
    model, batch = build(name), make_batch(4, length)
    expected = naive(model, rows_of(batch, [0, 1, 3]), 1.0)
    clipper = PerSampleClipper(model, 1.0)
    weights = torch.tensor([1.0, 1.0, factor, 1.0], dtype=torch.float64)
    with clipper.capture(4):
        (weights * losses(model, batch)).sum().backward()
    norms = clipper.accumulate()
    assert torch.isfinite(norms).tolist() == [True, True, False, True]
    assert clipper.num_nonfinite == 1
    assert_close((grads_of(model), norms[[0, 1, 3]]), expected)


@HEADS
@pytest.mark.parametrize("value", [math.inf, math.nan])
@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_nonfinite_row_takes_its_whole_unit_and_no_other_along(
    losses: Losses, value: float, is_checkpointed: bool
) -> None:
    """The hidden states of one row are spoilt before the first block; its unit has two rows."""
    model, batch = build("gpt2-tied"), make_batch(6)
    expected = naive(model, rows_of(batch, [0, 1, 4, 5]), 1.0, rows_per_unit=2)

    if is_checkpointed:
        model.gradient_checkpointing_enable({"use_reentrant": False})

    def spoil(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return torch.cat([output[:3], output[3:4] * value, output[4:]])

    with model.transformer.drop.register_forward_hook(spoil):
        found, norms = clipped(model, batch, 1.0, rows_per_unit=2, losses=losses)
    assert torch.isfinite(norms).tolist() == [True, False, True]
    assert_close((found, norms[[0, 2]]), expected)


def test_nonfinite_input_does_not_reach_the_sum() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2)).double()
    x = torch.randn(3, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    bad = x.clone()
    bad[1, 0, 0] = math.nan
    found, norms = clipped(model, {"x": bad}, 1.0, losses=toy_losses)
    assert torch.isfinite(norms).tolist() == [True, False, True]
    assert_close((found, norms[[0, 2]]), naive(model, {"x": x[[0, 2]]}, 1.0, losses=toy_losses))


def test_when_every_unit_is_nonfinite_the_step_is_taken_with_zero() -> None:
    model, batch = build("gpt2-tied"), make_batch(2)
    found, norms = clipped(model, batch, 1.0, losses=lambda m, b: math.nan * mean_losses(m, b))
    assert not torch.isfinite(norms).any()
    assert all(not grad.any() for grad in found)
