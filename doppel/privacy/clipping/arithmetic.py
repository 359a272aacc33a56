"""The few tensor operations that all layer rules share, with their precision decided in one place.

Norms and gradient sums are formed in float32 (float64 for float64 models), whatever the dtype of the
operands.

A squared norm [2, U] is the number of each unit as it was computed, and a bound on what rounding may hide from it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

_HALF = (torch.float16, torch.bfloat16)
_PART = 256


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
    elif left.device.type == "cuda" and _bmm_has_out():  # of shapes alone nothing is tried
        torch.bmm(left, right, out_dtype=out.dtype, out=out)
    else:
        out.copy_(matmul(left, right))


@functools.cache
def _bmm_has_out() -> bool:
    """Whether this release writes wide products of half precision where it is told to."""
    x, out = torch.ones(1, 8, 8, dtype=torch.bfloat16, device="cuda"), torch.zeros(1, 8, 8, device="cuda")
    try:
        torch.bmm(x, x, out_dtype=torch.float32, out=out)
    except RuntimeError:
        return False
    return True


def gram(x: Tensor) -> Tensor:
    """Return ``x xᵀ`` for each unit: [U, n, f] → [U, n, n], in the wide dtype."""
    x = gemm_operand(x)
    return matmul(x, x.transpose(1, 2))


def cross_inner(G_at_ids: Tensor, A: Tensor, D: Tensor) -> tuple[Tensor, Tensor]:
    """Return ⟨G_at_ids, ADᵀ⟩ for each unit, and what rounding may hide: [U, n, m], [U, n, d], [U, m, d] → [U] each."""
    wide = wide_dtype(A.dtype)
    G_at_ids = G_at_ids.to(wide)
    reach = torch.linalg.vector_norm(A, dim=2, keepdim=True, dtype=wide) * G_at_ids.abs()
    reach.mul_(torch.linalg.vector_norm(D, dim=2, dtype=wide).unsqueeze(1))
    over_m = reach.sum(2)
    num_positions = torch.maximum(torch.count_nonzero(reach.sum(1), dim=1), torch.count_nonzero(over_m, dim=1))
    share = rounding(num_positions, A.shape[2] + D.shape[2], A.dtype)
    return inner(G_at_ids, matmul(A, D.transpose(1, 2)).to(wide)), share * over_m.sum(1)


def same_id_inner(D: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return Σ (DDᵀ)_st over positions of one id, per unit, and its rounding: [U, n, d], [U, n] → [U] each."""
    DD = gram(D)
    is_same = (ids.unsqueeze(2) == ids.unsqueeze(1)).to(DD.dtype)
    length = lengths(DD).unsqueeze(2)
    reach = torch.bmm(is_same, length).mul_(length)
    share = rounding(torch.count_nonzero(reach, dim=(1, 2)), D.shape[2], D.dtype)
    return inner(DD, is_same), share * reach.sum((1, 2))


def lengths(gram: Tensor) -> Tensor:
    """Return the norm of each position's vector, from its gram: […, n, n] → […, n]."""
    return gram.diagonal(dim1=-2, dim2=-1).sqrt()


def rounding(num_positions: Tensor, num_features: int, dtype: torch.dtype) -> Tensor:
    """Bound the rounding of a squared norm, in units of R², where R = Σₛ‖aₛ‖‖gₛ‖ is the most n positions can reach.

    A dot product of d terms, in any order, is off by at most d·u·‖x‖‖y‖, where u is the unit of rounding. So the grams
    of A [n, d] and G [n, p], multiplied and summed over rows and then columns, are off by at most (d + p + 2n)·u·R²
    together. The clipped gradient is summed from the same positions, and is off by n·u·R, which 4n·u·R² more in the
    squared norm makes room for, a tied weight included (for ‖g‖ ≤ R, and √2·R of both its uses). Where the clipped
    operands are rounded to half precision, that error is ε/2·R; (1 + ε)‖g‖, see the clipper, and ε/4·R² cover it.

    n counts the positions that reach anything: adding an exact zero rounds nothing. It must not count padding, for
    then a unit's factor would depend on the longest unit beside it.

    Args:
        num_positions: n of each unit.
        num_features: d + p.
        dtype: Of the operands, as they are multiplied.

    Returns:
        The share, as ``num_positions``.
    """
    return num_positions * (3 * torch.finfo(wide_dtype(dtype)).eps) + rounding_of_products(num_features, dtype)


def rounding_of_products(num_features: int, dtype: torch.dtype) -> float:
    """Return the part of :func:`rounding` that all units have in common."""
    of_operands = torch.finfo(dtype).eps / 4 if dtype in _HALF else 0.0
    return (num_features + 16) * (torch.finfo(wide_dtype(dtype)).eps / 2) + of_operands


def inner(left: Tensor, right: Tensor) -> Tensor:
    """Return the inner product of each unit's two matrices, by rows and then over them: [U, m, n], [U, m, n] → [U]."""
    return (left * right).sum(2).sum(1)


def squares_of(part: Tensor) -> Tensor:
    """Return the squared norm of each unit's vectors together, in float64: [L, U, P] → [U].

    Sums of 256 squares are formed in the wide dtype and added in float64. In any order, n squares lose at most n·u of
    their sum; nothing cancels.
    """
    rest = part.shape[2] % _PART
    whole = part[:, :, : part.shape[2] - rest] if rest else part
    pieces = [whole.unflatten(2, (-1, _PART))] if whole.shape[2] else []
    pieces += [part[:, :, -rest:].unsqueeze(2)] if rest else []
    squares = [torch.linalg.vector_norm(x, dim=3).square_().sum((0, 2), dtype=torch.float64) for x in pieces]
    return squares[0] if len(squares) == 1 else squares[0] + squares[1]


def room_of_formed(squares: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what rounding may hide of :func:`squares_of` vectors in a dtype."""
    return squares * ((_PART + 16) * torch.finfo(dtype).eps / 2)


def formed_norm(gradients: Iterable[Tensor]) -> Tensor:
    """Return the squared norm of each unit's formed gradient, and what rounding may hide: [U, P] each → [2, U]."""
    wide = [gradient.to(wide_dtype(gradient.dtype)) for gradient in gradients]
    squares = torch.stack([squares_of(gradient.unsqueeze(0)) for gradient in wide]).sum(0)
    return torch.stack([squares, room_of_formed(squares, wide[0].dtype)]).to(wide[0].dtype)


def scale_units(x: Tensor, factors: Tensor) -> Tensor:
    """Multiply each unit of ``x`` [U, n, f] by its factor [U]; half precision is rounded once, at the end."""
    return (x * factors.to(wide_dtype(x.dtype)).view(-1, 1, 1)).to(x.dtype)


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


def add_to_grad(parameter: nn.Parameter, value: Tensor, scale: float) -> None:
    """Add ``scale · value`` to ``parameter.grad``."""
    gradient_of(parameter).add_(value.reshape(parameter.shape).to(parameter.dtype), alpha=scale)


def add_product_to_grad(parameter: nn.Parameter, left: Tensor, right: Tensor, scale: float) -> None:
    """Add ``scale · left @ right`` to ``parameter.grad``, inside the GEMM where the dtypes allow it."""
    grad = gradient_of(parameter)
    if grad.dtype is left.dtype and left.dtype not in _HALF:
        grad.addmm_(left, right, alpha=scale)
    else:
        add_to_grad(parameter, matmul(left, right), scale)
