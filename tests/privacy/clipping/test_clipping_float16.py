"""Operands of half precision, as a GPU multiplies them: a unit's contribution is its own, and within the bound.

On the CPU products are formed from float32, so the rules are given here what they keep on a GPU. Each unit has outputs
of its own, so that what it adds to the weight's gradient can be read off.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from doppel.privacy.clipping import PerSampleClipper
from doppel.privacy.clipping.arithmetic import centre_operands
from doppel.privacy.clipping.groups import add_products
from tests.layer_norms import by_grams, read_by

UNITS, POSITIONS, OUTPUTS, WIDTH = 6, 2, 3, 8
HALVES = pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
#: Clip factors of units beside one another: of a quiet one, and of ones whose gradients explode.
FACTORS = [
    torch.tensor([1.0, 0.37, 1e-2, 3e-4, 7e-6, 1e-9]),
    torch.rand(UNITS, generator=torch.Generator().manual_seed(1)),
]


def operands(half: torch.dtype) -> tuple[Tensor, Tensor]:
    """A [U, n, d], and G [U, n, U·p] of which each unit has its own part."""
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(UNITS, POSITIONS, WIDTH, generator=generator) * 10.0 ** torch.arange(-3.0, 3.0)[:, None, None]
    G = torch.randn(UNITS, POSITIONS, OUTPUTS, generator=generator).mul_(0.3)
    placed = torch.zeros(UNITS, POSITIONS, UNITS * OUTPUTS)
    for unit in range(UNITS):
        placed[unit, :, unit * OUTPUTS : (unit + 1) * OUTPUTS] = G[unit]
    return A.to(half), placed.to(half)


def of_linear(A: Tensor, G: Tensor, factors: Tensor, bound: float = 0.25, loss_scale: float = 64.0) -> Tensor:
    layer = nn.Linear(A.shape[2], G.shape[2], bias=False)
    add_products([read_by(layer.weight, A, G)], factors, 1.0 / loss_scale, bound, None, lambda weight: None)
    assert layer.weight.grad is not None
    return layer.weight.grad


@HALVES
@pytest.mark.parametrize("factors", FACTORS)
def test_a_units_contribution_is_the_same_to_the_last_bit_whoever_is_beside_it(
    factors: Tensor, half: torch.dtype
) -> None:
    A, G = operands(half)
    together = of_linear(A, G, factors)
    assert together.isfinite().all()
    for unit in range(UNITS):
        own = slice(unit * OUTPUTS, (unit + 1) * OUTPUTS)
        for others in ([unit], [unit, (unit + 1) % UNITS], [(unit + 3) % UNITS, unit, (unit + 4) % UNITS]):
            found = of_linear(A[others], G[others], factors[others])
            assert torch.equal(found[own], together[own])


@pytest.mark.parametrize("bound", [2.0**-20, 2.0**-3, 1.0, 2.0**10])
@pytest.mark.parametrize("loss_scale", [1.0, 4096.0])
@pytest.mark.parametrize("factor", [0.6, 0.9, 1.3, 1.7])
def test_a_contribution_does_not_pass_the_bound_where_the_factor_is_as_small_as_float16s_last_number(
    factor: float, loss_scale: float, bound: float
) -> None:
    """A gradient of norm C·2²⁴: inputs of 1, times the factor, were rounded to the last number, 1.7 times as much."""
    A, G = torch.ones(1, 4, 8, dtype=torch.float16), torch.full((1, 4, 16), 1000.0, dtype=torch.float16)
    norm = torch.einsum("und,unp->dp", A.double(), G.double()).norm().item() / loss_scale
    clipping_norm = factor * 2.0**-24 * norm
    found = of_linear(
        A,
        G,
        torch.tensor([clipping_norm / norm]),
        bound=2.0 ** math.ceil(math.log2(clipping_norm)),
        loss_scale=loss_scale,
    )
    assert found.norm().item() == pytest.approx(clipping_norm, rel=2.0**-10)


def test_no_operand_leaves_float16_whatever_the_unit() -> None:
    """Of the largest factor that the room for rounding allows; also where all positions but one are small."""
    generator = torch.Generator().manual_seed(2)
    exponents = torch.randint(-24, 16, (2, 400, 3, 1), generator=generator)
    A, G = ((1 + torch.rand(400, 3, 5, generator=generator)) * 2.0 ** exponents[i] for i in range(2))
    A, G = A.clamp(max=65504.0).half(), G.clamp(max=65504.0).half()
    for bound in (2.0**-20, 1.0, 2.0**10):
        factors = (bound / by_grams(A, G)[1].sqrt()).float().clamp(max=1.0)  # of gradients that cancel to nothing else
        for product in centre_operands(A, G, factors, 1.0, bound)[:2]:
            assert product.isfinite().all()


def test_a_small_factor_leaves_an_embeddings_gradient_its_digits() -> None:
    """Rows are added in float32, whatever the dtype of the gradient of its output."""
    table, ids, upstream = nn.Embedding(4, 8), torch.tensor([[0, 1, 1], [2, 3, 2]]), torch.randn(2, 3, 8).half()
    clipper = PerSampleClipper(table, max_grad_norm=1e-7)
    with clipper.capture(2):
        (table(ids).half() * upstream).float().sum().backward()
    factors = 1e-7 / clipper.accumulate()
    rows = (upstream.float() * factors[:, None, None]).flatten(0, 1)
    expected = torch.zeros(4, 8).index_add_(0, ids.flatten(), rows)
    torch.testing.assert_close(table.weight.grad, expected, rtol=1e-4, atol=0.0)
