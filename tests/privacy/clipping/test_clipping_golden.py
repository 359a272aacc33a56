"""Clipped sums and norms of one small model, pinned: tied weight, masked labels, a row without loss, rows of one unit.

float64 is compared with the naive loop too, which is the truth; the half precisions, under autocast, are held to their
rounding. A change of these numbers is a change of the mechanism.
"""

from __future__ import annotations

import pytest
import torch
from clipping_reference import Losses, assert_close, build, clipped, head_losses, make_batch, naive, summed_losses
from torch import Tensor, nn

BOUND = 0.05
WAYS: dict[str, Losses] = {"all logits": summed_losses, "HeadLoss": head_losses(divisor=16.0)}
#: By rows of a unit: the norms, and Σ clip(gᵢ) of the first four parameters along a fixed direction each.
GOLDEN: dict[int, tuple[list[float], list[float]]] = {
    1: (
        [2.0476700662236174, 0.0, 2.338061803369497, 1.9840374753627936, 2.075845645375331, 3.3090644286003466],
        [0.022993698219728027, -0.015287708729234937, 0.00034284626673271345, 0.0015693904319251503],
    ),
    3: (
        [3.007737454049119, 4.434915298303224],
        [0.020483940161305496, -0.013621028969498562, 0.0005263903561810545, 0.0004795345769444743],
    ),
}


def projections(grads: list[Tensor]) -> Tensor:
    """The first four gradients along cos(0), cos(1), …"""
    return torch.stack([g.double().flatten() @ torch.arange(g.numel()).double().cos() for g in grads[:4]])


@pytest.mark.parametrize("rows_per_unit", [1, 3])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("dtype", "loss_scale", "tolerance"),
    [(torch.float64, 1.0, 1e-10), (torch.bfloat16, 1.0, 2**-6), (torch.float16, 1024.0, 2**-9)],
)
def test_clipped_sums_are_those_of_before(
    way: str, dtype: torch.dtype, loss_scale: float, tolerance: float, rows_per_unit: int
) -> None:
    is_half = dtype is not torch.float64

    def losses(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        with torch.autocast("cpu", dtype, enabled=is_half):
            return WAYS[way](model, batch)

    model, batch = build("gpt2-tied", torch.float32 if is_half else dtype), make_batch(6)
    found = clipped(model, batch, BOUND, rows_per_unit, losses=losses, loss_scale=loss_scale)
    if not is_half:
        assert_close(found, naive(model, batch, BOUND, rows_per_unit, losses=summed_losses))
    norms, along = (torch.tensor(values, dtype=torch.float64) for values in GOLDEN[rows_per_unit])
    torch.testing.assert_close(found[1].double(), norms, rtol=tolerance, atol=0.0)
    torch.testing.assert_close(projections(found[0]), along, rtol=0.0, atol=tolerance * BOUND * len(norms))
