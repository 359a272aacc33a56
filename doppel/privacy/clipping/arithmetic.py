"""The few tensor operations that all layer rules share, with their precision decided in one place.

Norms and gradient sums are formed in float32 (float64 for float64 models), whatever the dtype of the
operands.

What a rule knows of units' norms is :data:`Norms`: the squared norms as they were computed, and bounds on rounding.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

#: Of each unit, [U] in float64: the squared norm as computed; what rounding may hide of it, in units of 2⁻²⁴; and the
#: square of what the clipped gradient may be longer by than it is by its formula, because its operands and its sum are
#: rounded, in units of 2⁻⁴⁸. None: nothing.
Norms = tuple[Tensor, Tensor | None, Tensor | None]
UNIT = 2.0**-24

_HALF = (torch.float16, torch.bfloat16)
#: Bounds on rounding are sums of first order. Those of higher order are d·u times as large: below 2⁻⁸ for 65,000 terms.
HIGHER = 1 + 2.0**-6


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which norms and sums over operands of ``dtype`` are formed."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def gemm_operand(x: Tensor) -> Tensor:
    """Return ``x`` as an operand whose products come out in the wide dtype.

    CUDA multiplies half precision into float32. The CPU does not, so there the half-precision values are copied to
    float32 first: the numbers are the same, and nothing is rounded again.
    """
    return x if x.is_cuda or x.dtype not in _HALF else x.float()


def matmul(left: Tensor, right: Tensor) -> Tensor:
    """Return ``left @ right`` for [m, n] and [n, p], or per unit, [U, m, n] and [U, n, p], in the wide dtype."""
    multiply: Callable[..., Tensor] = torch.mm if left.dim() == 2 else torch.bmm
    if left.is_cuda and left.dtype in _HALF:
        return multiply(left, right, out_dtype=torch.float32)
    return multiply(gemm_operand(left), gemm_operand(right))


def bmm_into(left: Tensor, right: Tensor, out: Tensor) -> None:
    """Write ``left @ right`` per unit, [U, m, n] and [U, n, p], into ``out``, which is wide."""
    if left.dtype is out.dtype:
        torch.bmm(left, right, out=out)
    elif not left.is_cuda:
        torch.bmm(left.to(out.dtype), right.to(out.dtype), out=out)
    elif left.device.type == "cuda" and _bmm_has_out():  # of shapes alone nothing is tried
        torch.bmm(left, right, out_dtype=out.dtype, out=out)
    else:
        out.copy_(torch.bmm(left, right, out_dtype=out.dtype))


@functools.cache
def _bmm_has_out() -> bool:
    """Whether this release writes wide products of half precision where it is told to."""
    x, out = torch.ones(1, 8, 8, dtype=torch.bfloat16, device="cuda"), torch.zeros(1, 8, 8, device="cuda")
    try:
        torch.bmm(x, x, out_dtype=torch.float32, out=out)
    except RuntimeError:
        return False
    return True


def cross_inner(G_at_ids: Tensor, A: Tensor, D: Tensor) -> Norms:
    """Return ⟨G_at_ids, ADᵀ⟩ for each unit, and its rounding: [U, n, m], [U, n, d], [U, m, d] → [U] each."""
    wide = wide_dtype(A.dtype)
    G_at_ids = G_at_ids.to(wide)
    reach = torch.linalg.vector_norm(A, dim=2, keepdim=True, dtype=wide) * G_at_ids.abs()
    reach.mul_(torch.linalg.vector_norm(D, dim=2, dtype=wide).unsqueeze(1))
    room = reach.sum((1, 2), dtype=torch.float64).mul_((A.shape[2] + 16) * unit_of(wide) / UNIT)
    return inner(G_at_ids, matmul(A, D.transpose(1, 2)).to(wide)), room, None


def lengths(gram: Tensor) -> Tensor:
    """Return the norm of each position's vector, from its gram: […, n, n] → […, n]."""
    return gram.diagonal(dim1=-2, dim2=-1).sqrt()


def unit_of(dtype: torch.dtype) -> float:
    """Return the unit of rounding u: a number is off by at most u times itself."""
    return torch.finfo(dtype).eps / 2


def in_units(squares: Tensor, dtype: torch.dtype) -> Tensor:
    """Return squares that are in units of a dtype's rounding in those of :data:`Norms`, 2⁻⁴⁸."""
    return squares if unit_of(dtype) == UNIT else squares * (unit_of(dtype) / UNIT) ** 2


def dot_rounding(num_features: int) -> float:
    """Bound the rounding of z = xᵀy as k: it is off by at most u·k·(‖x‖‖y‖ + |z|), whatever the order of sums.

    *Proof.* The d products are off by u·Σ|xᵢyᵢ| together. Each of d − 1 sums is off by u times itself, and each is the
    sum of some of the products. With P the sum of positive ones and −N that of negative ones, it lies between −N and P,
    and max(P, N) = (Σ|xᵢyᵢ| + |z|) / 2. As Σ|xᵢyᵢ| ≤ ‖x‖‖y‖ (Cauchy and Schwarz), k = (d + 1)/2. What is d·u times as
    large as this is left to :data:`HIGHER`.

    Args:
        num_features: d; 0: the vectors are one-hot, and nothing is rounded.
    """
    return (num_features + 1) / 2 if num_features else 0.0


def inner(left: Tensor, right: Tensor) -> Tensor:
    """Return the inner product of each unit's two matrices, summed in float64: [U, m, n], [U, m, n] → [U]."""
    return (left * right).sum((1, 2), dtype=torch.float64)


def centre_operands(A: Tensor, G: Tensor, factors: Tensor, scale: float, bound: float) -> tuple[Tensor, Tensor, float]:
    """Scale float16 operands, A' and G' as [U·n, d] and [U·n, p]: scale' G'ᵀA' is scale · Σᵢ factorsᵢ GᵢᵀAᵢ.

    float16 has few exponents: a clip factor of 10⁻⁷ times an input of 1 falls between its two smallest numbers, and
    half a unit of rounding could pass the bound. So each position's G is divided by the power of two above its peak,
    exactly but for what is below 2⁻¹³ of the peak; its A takes that power, the factor, and the scale in units of 2⁻⁸ of
    the bound. All are functions of the unit alone or public: around the micro-batch's largest factor, a unit's rounding
    would depend on others. *Range*: :func:`rounding` leaves room for 2⁻¹²R² in the squared norm of half-precision
    operands, so a factor times a position's largest entries is at most 2⁶C, and A' at most 2·2⁸·2⁶ = 2¹⁵. An A' below
    2⁻¹⁴ is off by 2⁻²⁵ at most, 2⁻³³C of an entry of a position's gradient.

    Args:
        A: Inputs [U, n, d], float16.
        G: Output gradients [U, n, p], float16.
        factors: Clip factors [U].
        scale: Takes the loss scale out.
        bound: The clipping norm C, rounded up to a power of two.
    """
    unit = bound * 2.0**-8
    peaks = torch.linalg.vector_norm(G, math.inf, dim=2, keepdim=True, dtype=torch.float32)
    powers = torch.where(peaks > 0, peaks / torch.frexp(peaks).mantissa, 1.0)
    weights = factors.float()[:, None, None] * powers * (scale / unit)
    return (A * weights).to(A.dtype).flatten(0, 1), (G / powers).to(G.dtype).flatten(0, 1), unit


def erase_units(x: Tensor, units: Tensor) -> Tensor:
    """Return a copy of ``x`` [U, …] that is zero at the ``units`` marked true, whatever stood there."""
    return x.masked_fill(units.view(-1, *[1] * (x.dim() - 1)), 0)


def gradient_of(parameter: nn.Parameter) -> Tensor:
    """Return the ``grad`` of a parameter: zero where there was none."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def add_product(grad: Tensor, G: Tensor, A: Tensor, scale: float) -> None:
    """Add ``scale · GᵀA`` to a weight's gradient, inside the GEMM where the dtypes allow it: [m, p] and [m, d]."""
    if grad.dtype is G.dtype and grad.dtype not in _HALF:
        grad.addmm_(G.t(), A, alpha=scale)
    else:
        grad.add_(matmul(G.t(), A).to(grad.dtype), alpha=scale)
