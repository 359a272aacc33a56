"""The few tensor operations that all layer rules share, with their precision decided in one place.

Norms and gradient sums are formed in float32 (float64 for float64 models), whatever the dtype of the
operands.

A squared norm [2, U] is the number of each unit as it was computed, and a bound on what rounding may hide from it.
"""

from __future__ import annotations

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


def product_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of :func:`gemm_operand`, to which clipped operands are rounded."""
    return x.dtype if x.is_cuda else wide_dtype(x.dtype)


def matmul(left: Tensor, right: Tensor) -> Tensor:
    """Return ``left @ right`` for [m, n] and [n, p], or per unit, [U, m, n] and [U, n, p], in the wide dtype."""
    multiply: Callable[..., Tensor] = torch.mm if left.dim() == 2 else torch.bmm
    if left.is_cuda and left.dtype in _HALF:
        return multiply(left, right, out_dtype=torch.float32)
    return multiply(gemm_operand(left), gemm_operand(right))


def gram(x: Tensor) -> Tensor:
    """Return ``x xᵀ`` for each unit: [U, n, f] → [U, n, n], in the wide dtype."""
    x = gemm_operand(x)
    return matmul(x, x.transpose(1, 2))


def gram_inner(A: Tensor, G: Tensor, offset: float = 0.0) -> Tensor:
    """Return ‖GᵀA‖² = ⟨AAᵀ, GGᵀ⟩ for each unit, and what rounding may hide from it: [U, n, d], [U, n, p] → [2, U].

    Args:
        A: Inputs at the unit's n positions.
        G: Output gradients there.
        offset: Added to AAᵀ: 1 is the norm with a bias.
    """
    AA, GG = gram(A).add_(offset), gram(G)
    reach = lengths(AA).mul_(lengths(GG))
    return torch.stack([inner(AA, GG), rounding(reach, A, G) * reach.sum(1).square()])


def room_of_gram(A: Tensor, G: Tensor, offset: float = 0.0) -> Tensor:
    """Return the room for rounding that :func:`gram_inner` leaves, without its grams: [U, n, d], [U, n, p] → [U]."""
    wide = wide_dtype(A.dtype)
    squares = torch.linalg.vector_norm(A, dim=2, dtype=wide).square() + offset
    reach = squares.sqrt() * torch.linalg.vector_norm(G, dim=2, dtype=wide)
    return rounding(reach, A, G) * reach.sum(1).square()


def cross_inner(G_at_ids: Tensor, A: Tensor, D: Tensor) -> Tensor:
    """Return ⟨G_at_ids, ADᵀ⟩ for each unit, and what rounding may hide: [U, n, m], [U, n, d], [U, m, d] → [2, U]."""
    wide = wide_dtype(A.dtype)
    G_at_ids = G_at_ids.to(wide)
    reach = torch.linalg.vector_norm(A, dim=2, keepdim=True, dtype=wide) * G_at_ids.abs()
    reach = reach * torch.linalg.vector_norm(D, dim=2, dtype=wide).unsqueeze(1)
    share = torch.maximum(rounding(reach.sum(1), A, D), rounding(reach.sum(2), A, D))
    return torch.stack([inner(G_at_ids, matmul(A, D.transpose(1, 2)).to(wide)), share * reach.sum((1, 2))])


def same_id_inner(D: Tensor, ids: Tensor) -> Tensor:
    """Return Σ (DDᵀ)_st over positions of one id, per unit, and its rounding: [U, n, d], [U, n] → [2, U]."""
    DD = gram(D)
    is_same = (ids.unsqueeze(2) == ids.unsqueeze(1)).to(DD.dtype)
    length = lengths(DD)
    reach = (is_same @ length.unsqueeze(2)).squeeze(2).mul_(length)
    return torch.stack([inner(DD, is_same), rounding(reach, D) * reach.sum(1)])


def lengths(gram: Tensor) -> Tensor:
    """Return the norm of each position's vector, from its gram: [U, n, n] → [U, n]."""
    return gram.diagonal(dim1=1, dim2=2).sqrt()


def rounding(reach: Tensor, *operands: Tensor) -> Tensor:
    """Bound the rounding of a squared norm, in units of R², where R = Σₛ‖aₛ‖‖gₛ‖ is the most n positions can reach.

    A dot product of d terms, in any order, is off by at most d·u·‖x‖‖y‖, where u is the unit of rounding. So the grams
    of A [n, d] and G [n, p], multiplied and summed over rows and then columns, are off by at most (d + p + 2n)·u·R²
    together. The clipped gradient is summed from the same positions, and is off by n·u·R, which 4n·u·R² more in the
    squared norm makes room for, a tied weight included (for ‖g‖ ≤ R, and √2·R of both its uses). Where the clipped
    operands are rounded to half precision, that error is ε/2·R; (1 + ε)‖g‖, see the clipper, and ε/4·R² cover it.

    n counts the positions that reach anything: adding an exact zero rounds nothing. It must not count padding, for
    then a unit's factor would depend on the longest unit beside it.

    Args:
        reach: ‖aₛ‖‖gₛ‖ of each position [U, n].
        operands: [U, …, d] each, as they are multiplied.

    Returns:
        The share of each unit [U].
    """
    dtype = operands[0].dtype
    num_terms = sum(x.shape[2] for x in operands) + 6 * torch.count_nonzero(reach, dim=1) + 16
    of_operands = torch.finfo(dtype).eps / 4 if dtype in _HALF else 0.0
    return num_terms * (torch.finfo(wide_dtype(dtype)).eps / 2) + of_operands


def inner(left: Tensor, right: Tensor) -> Tensor:
    """Return the inner product of each unit's two matrices, by rows and then over them: [U, m, n], [U, m, n] → [U]."""
    return (left * right).sum(2).sum(1)


def squared_norm(x: Tensor) -> Tensor:
    """Return the squared norm of each unit's tensor, whose rounding is negligible: [U, …] → [2, U], wide."""
    flat = x.flatten(1).to(wide_dtype(x.dtype))
    squared = torch.linalg.vecdot(flat, flat)
    return torch.stack([squared, torch.zeros_like(squared)])


def formed_norm(gradients: Iterable[Tensor]) -> Tensor:
    """Return the squared norm of each unit's formed gradient, and what rounding may hide: [U, …] → [2, U].

    Sums of 256 squares are formed in the wide dtype and added in float64. In any order, n squares lose at most n·u of
    their sum; nothing cancels.
    """
    total: Tensor | None = None
    for gradient in gradients:
        flat = gradient.flatten(1).to(wide_dtype(gradient.dtype))
        for part in flat.split(_PART, 1) if flat.shape[1] < 8 * _PART else _parts(flat):
            squares = torch.linalg.vector_norm(part, dim=-1).double().square()
            squares = squares.sum(1) if squares.dim() > 1 else squares
            total = squares if total is None else total + squares
        wide = flat.dtype
    assert total is not None
    room = (_PART + 16) * torch.finfo(wide).eps / 2
    return torch.stack([total, room * total]).to(wide)


def _parts(flat: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of 256 numbers, and the rest: [U, P] → [U, P // 256, 256] and [U, P % 256]."""
    cut = flat.shape[1] // _PART * _PART
    return flat[:, :cut].unflatten(1, (-1, _PART)), flat[:, cut:]


def scale_units(x: Tensor, factors: Tensor) -> Tensor:
    """Multiply each unit of ``x`` [U, n, f] by its factor [U]; half precision is rounded once, at the end."""
    return (x * factors.to(wide_dtype(x.dtype))[:, None, None]).to(x.dtype)


def centre_operands(A: Tensor, G: Tensor, factors: Tensor, scale: float, bound: float) -> tuple[Tensor, Tensor, float]:
    """Scale float16 operands: scale' · Σ G'ᵀA' is scale · Σᵢ factorsᵢ GᵢᵀAᵢ over units and positions.

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
    return (A * weights).to(A.dtype), (G / powers).to(G.dtype), unit


def erase_units(x: Tensor, units: Tensor) -> Tensor:
    """Return a copy of ``x`` [U, …] that is zero at the ``units`` marked true, whatever stood there."""
    return x.masked_fill(units.view(-1, *[1] * (x.dim() - 1)), 0)


def add_to_grad(parameter: nn.Parameter, value: Tensor, scale: float) -> None:
    """Add ``scale · value`` to ``parameter.grad``."""
    value = value.reshape(parameter.shape)
    if parameter.grad is None:
        parameter.grad = (value * scale if scale != 1.0 else value).to(parameter.dtype)
    else:
        parameter.grad.add_(value.to(parameter.dtype), alpha=scale)


def add_product_to_grad(parameter: nn.Parameter, left: Tensor, right: Tensor, scale: float) -> None:
    """Add ``scale · left @ right`` to ``parameter.grad``, inside the GEMM where the dtypes allow it."""
    if parameter.grad is not None and parameter.grad.dtype is left.dtype and left.dtype not in _HALF:
        parameter.grad.addmm_(left, right, alpha=scale)
    else:
        add_to_grad(parameter, matmul(left, right), scale)
