"""The attacker's row has positions whose large gradients cancel, so that rounding hides the norm from the clipper.

A norm that is formed from Gram products is a sum of terms as large as the positions' own norms. Where these are 10^3
each and the gradient is 1, float32 keeps no digit of the sum: it came out as 0 or below, nothing was clipped, and the
row contributed up to ninety times the bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from doppel.privacy.clipping import PerSampleClipper
from doppel.privacy.clipping.arithmetic import cross_inner
from doppel.privacy.clipping.head import HeadLoss
from tests.layer_norms import by_grams

BOUND = 0.1
Attack = tuple[nn.Module, Callable[[nn.Module], Tensor]]


def largest_contribution(attack: Callable[[int], Attack], rows_per_unit: int = 1, num_trials: int = 40) -> float:
    """Norm of what one unit adds to the sum, the largest of some trials."""
    found = []
    for seed in range(num_trials):
        torch.manual_seed(seed)
        model, loss = attack(seed)
        clipper = PerSampleClipper(model, BOUND)
        with clipper.capture(1, rows_per_unit):
            loss(model).sum().backward()
        clipper.accumulate()
        grads = [p.grad.double().flatten() for p in model.parameters() if p.grad is not None]
        found.append(torch.cat(grads).norm().item())
    return max(found)


def opposite(num_features: int, difference: float, num_pairs: int = 2) -> Tensor:
    """Pairs of positions [1, n, f] of norm 10^3 that differ by ``difference`` in sign-reversed direction."""
    x = torch.randn(1, num_pairs, num_features)
    x = 1e3 * x / x.norm(dim=2, keepdim=True)
    shift = torch.randn_like(x)
    return torch.cat([x, -x + difference * shift / shift.norm(dim=2, keepdim=True)], 1)


def test_the_room_for_rounding_does_not_tell_who_is_beside_a_row() -> None:
    """Its factor would otherwise depend on the longest row of the micro-batch, by which its own is padded."""
    torch.manual_seed(0)
    A, G, D = torch.randn(3, 2, 10, 48)
    at_ids, ids = torch.randn(2, 10, 10), torch.randint(1, 4, (2, 10))

    def padded(x: Tensor, *dims: int) -> Tensor:
        return F.pad(x, [number for d in range(x.dim() - 1, -1, -1) for number in (0, 90 if d in dims else 0)])

    A_, G_, D_ = padded(A, 1), padded(G, 1), padded(D, 1)
    for alone, beside in (
        (by_grams(A, G), by_grams(A_, G_)),
        (cross_inner(at_ids, A, D), cross_inner(padded(at_ids, 1, 2), A_, D_)),
        (by_grams(ids, D), by_grams(padded(ids, 1), D_)),
    ):
        for k in (1, 2):
            torch.testing.assert_close(beside[k], alone[k], rtol=1e-5, atol=0)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("num_pairs", [2, 40])
def test_positions_that_cancel_in_a_linear_layer(bias: bool, num_pairs: int) -> None:
    def attack(seed: int) -> Attack:
        x = opposite(96, 1e-3 * (1 + seed % 7), num_pairs)
        upstream = torch.randn(1, num_pairs, 80).mul_(1e2).repeat(1, 2, 1)
        return nn.Linear(96, 80, bias=bias), lambda model: (model(x) * upstream).sum((1, 2))

    assert largest_contribution(attack) <= BOUND


def test_positions_of_one_word_that_cancel_in_an_embedding() -> None:
    def attack(seed: int) -> Attack:
        upstream = opposite(64, 0.3 * (1 + seed % 7))
        ids = torch.zeros(1, 4, dtype=torch.long)
        return nn.Embedding(3, 64), lambda model: (model(ids) * upstream).sum((1, 2))

    assert largest_contribution(attack) <= BOUND


class _Tied(nn.Module):
    """Logits of one word for each position; the two uses of the weight have opposite gradients, up to a little."""

    def __init__(self, little: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 32)
        self.head = nn.Linear(32, 5, bias=False)
        self.head.weight = self.embed.weight
        turn = torch.randn(32, 32)
        self.register_buffer("turn", 300 * (turn - turn.T) + little * torch.eye(32))

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embed(ids) @ self.turn)  # type: ignore[operator]


def test_a_tied_weight_whose_two_uses_cancel() -> None:
    def attack(seed: int) -> Attack:
        upstream = torch.tensor([30.0, 0, 0, 0, 0]).expand(1, 3, 5)
        ids = torch.zeros(1, 3, dtype=torch.long)
        return _Tied(1e-3 * (1 + seed % 7)), lambda model: (model(ids) * upstream).sum((1, 2))

    assert largest_contribution(attack) <= BOUND


@pytest.mark.parametrize("rows_per_unit", [1, 2])
def test_positions_that_cancel_in_a_head_that_is_fused_with_its_loss(rows_per_unit: int) -> None:
    def attack(seed: int) -> Attack:
        hidden = opposite(64, 1e-2 * (1 + seed % 7), 4).view(rows_per_unit, -1, 64)
        head = nn.Linear(64, 40, bias=False)
        head.weight.data.mul_(1e-6)  # all positions have one softmax
        labels = torch.zeros(hidden.shape[:2], dtype=torch.long)
        return head, lambda model: 100 * HeadLoss(model)(hidden, labels)

    assert largest_contribution(attack, rows_per_unit) <= BOUND


def test_what_safety_costs_an_ordinary_row_is_a_ten_thousandth_at_most() -> None:
    """Rows without cancellation, in float32, of 30 positions in a layer of 256 by 1,024."""
    model = nn.Linear(256, 1024)
    torch.manual_seed(0)
    x, upstream = torch.randn(1, 30, 256), torch.randn(1, 30, 1024)
    clipper = PerSampleClipper(model, BOUND)
    with clipper.capture(1):
        (model(x) * upstream).sum((1, 2)).backward()
    norm = clipper.accumulate().item()
    true_norm = torch.cat([upstream[0].T @ x[0], upstream[0].sum(0)[:, None]], 1).norm().item()
    assert norm == pytest.approx(true_norm, rel=1e-5)
    used = math.hypot(*(p.grad.norm().item() for p in model.parameters())) / BOUND  # type: ignore[union-attr]
    assert 0.9999 < used <= 1.0
