"""What rounding may hide of a norm is bounded in the worst case, and ordinary gradients pay next to nothing for it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchmarks._subject import Setting, Subject
from doppel.privacy.clipping import PerSampleClipper
from doppel.privacy.clipping.arithmetic import dot_rounding, unit_of
from doppel.privacy.clipping.groups import add_products
from tests.layer_norms import read_by, safe_norms

BOUND = 0.125
Factors = tuple[Tensor, Tensor]


def normal(n: int, d: int, p: int) -> Factors:
    return torch.randn(n, d), torch.randn(n, p)


def coherent(n: int, d: int, p: int) -> Factors:
    """All positions are nearly one: inputs after a norm."""
    A, G = normal(n, d, p)
    return A + 5 * A[:1], G


def positive(n: int, d: int, p: int) -> Factors:
    """Sums only grow."""
    return torch.rand(n, d), torch.rand(n, p)


def cancelling(n: int, d: int, p: int) -> Factors:
    """Large gradients of pairs of positions that leave a small one."""
    A, G = normal(n, d, p)
    return torch.cat([A[: n // 2], A[: n // 2] + 1e-3 * A[n // 2 :]]), torch.cat([G[: n // 2], -G[: n // 2]])


def swamped(n: int, d: int, p: int) -> Factors:
    """Each product beside the first is half a unit of rounding, and is lost; the others' gradients cancel."""
    A, G = torch.full((n, d), 2.0**-12.5), torch.ones(n, p)
    A[:, 0], G[1::2] = 1.0, -1.0
    A[1::2, 1:] *= -1.0
    return A, G


def swamped_gradients(n: int, d: int, p: int) -> Factors:
    return swamped(n, p, d)[::-1]


def spread(n: int, d: int, p: int) -> Factors:
    """Of many sizes."""
    A, G = normal(n, d, p)
    return A * 10.0 ** torch.linspace(-6, 3, n)[:, None], G * 10.0 ** torch.linspace(3, -6, p)


CASES = [normal, coherent, positive, cancelling, swamped, swamped_gradients, spread]


def contribution(A: Tensor, G: Tensor) -> Tensor:
    """What a unit adds to the gradient of a layer."""
    layer = nn.Linear(A.shape[1], G.shape[1], bias=False)
    A, G = A.unsqueeze(0), G.unsqueeze(0)
    factors = (BOUND / (1 + 16 * unit_of(torch.float32)) / safe_norms(A, G).float()).clamp(max=1.0)
    add_products([read_by(layer.weight, A, G)], factors, 1.0, BOUND, None, lambda weight: None)
    assert layer.weight.grad is not None
    return layer.weight.grad.double()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", CASES)
@pytest.mark.parametrize(("n", "d", "p"), [(2, 8, 8), (8, 384, 64), (16, 40, 700), (64, 200, 130), (90, 30, 400)])
def test_no_unit_adds_more_than_the_bound_whatever_its_vectors(
    n: int, d: int, p: int, make: Callable[[int, int, int], Factors], dtype: torch.dtype
) -> None:
    """Half precision as a GPU multiplies it: products of half precision, and scaled inputs that are rounded to it."""
    for seed in range(3):
        torch.manual_seed(seed)
        A, G = (x.to(dtype) for x in make(n, d, p))
        norm = (G.double().T @ A.double()).norm().item()
        found = contribution(A, G).norm().item()
        assert found <= BOUND
        if make is normal:
            assert found >= (1 - (2e-4 if dtype is torch.float32 else 0.03)) * min(norm, BOUND)


def test_a_dot_product_is_off_by_no_more_than_its_bound() -> None:
    """Summed one by one in float32, the worst order, in which half of the bound is reached."""
    worst = 0.0
    for d in (3, 40, 900):
        for x, y in ((torch.randn(d), torch.randn(d)), (torch.full((d,), 2.0**-12.01), torch.full((d,), 2.0**-12.01))):
            x[0] = y[0] = 1.0
            exact = (x.double() @ y.double()).item()
            reach = (x.double().norm() * y.double().norm()).item() + abs(exact)
            computed = float(np.cumsum((x * y).numpy(), dtype=np.float32)[-1])
            worst = max(worst, abs(computed - exact) / (unit_of(torch.float32) * dot_rounding(d) * reach))
    assert 0.4 < worst <= 1.0


@pytest.mark.parametrize(
    ("size", "unused"), [("cpu-256", 3e-4), pytest.param("cpu-768", 1.5e-3, marks=pytest.mark.slow)]
)
def test_an_ordinary_unit_uses_all_of_the_bound_but_what_wide_products_may_round(size: str, unused: float) -> None:
    """The models of ``python -m benchmarks.clipping``; what the logits' 8,192 and 50,257 features take."""
    subject = Subject(Setting(size, 1, 64))
    clipper = PerSampleClipper(subject.model, BOUND)
    with clipper.capture(1):
        subject.losses(subject.micro_batches[0]).sum().backward()
    norm = clipper.accumulate().item()
    grads = [p.grad.double().norm() for p in subject.model.parameters() if p.grad is not None]
    assert norm > BOUND
    assert 1 - unused <= torch.stack(grads).norm().item() / BOUND <= 1.0
