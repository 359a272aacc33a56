"""The few tensor operations that all layer rules share, with their precision decided in one place.

Norms and gradient sums are formed in float32 (float64 for float64 models), whatever the dtype of the
operands.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_HALF = (torch.float16, torch.bfloat16)


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which norms and sums over operands of ``dtype`` are formed."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def gemm_operand(x: Tensor) -> Tensor:
    """``x`` as an operand whose products come out in the wide dtype.

    CUDA multiplies half precision into float32. The CPU does not, so there the half-precision values are copied to
    float32 first: the numbers are the same, and nothing is rounded again.
    """
    return x if x.is_cuda or x.dtype not in _HALF else x.float()


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype of :func:`gemm_operand`, to which clipped operands are rounded."""
    return x.dtype if x.is_cuda else wide_dtype(x.dtype)


def batched_matmul(left: Tensor, right: Tensor) -> Tensor:
    """``left @ right`` for [U, m, n] and [U, n, p], formed in the wide dtype."""
    if left.is_cuda and left.dtype in _HALF:
        return torch.bmm(left, right, out_dtype=torch.float32)
    return torch.bmm(gemm_operand(left), gemm_operand(right))


def _matmul(left: Tensor, right: Tensor) -> Tensor:
    if left.is_cuda and left.dtype in _HALF:
        return torch.mm(left, right, out_dtype=torch.float32)
    return torch.mm(gemm_operand(left), gemm_operand(right))


def gram(x: Tensor) -> Tensor:
    """``x xᵀ`` for each unit: [U, n, f] → [U, n, n], in the wide dtype."""
    x = gemm_operand(x)
    return batched_matmul(x, x.transpose(1, 2))


def gram_inner(A: Tensor, G: Tensor, offset: float = 0.0) -> Tensor:
    """⟨AAᵀ + offset, GGᵀ⟩ for each unit: [U, n, d], [U, n, p] → [U].

    Both grams are symmetric. Where the GEMMs bound the time (on the CPU, at many positions), they are cut into four
    blocks, of which one is not formed.
    """
    num_units, n = A.shape[:2]
    if A.is_cuda or n < 64 or n % 2:
        AA = gram(A)
        return inner(AA.add_(offset) if offset else AA, gram(G))
    A, G, half = gemm_operand(A), gemm_operand(G), n // 2
    halves = (x.reshape(2 * num_units, half, x.shape[2]) for x in (A, G))
    on_diagonal = inner(*(gram(x).add_(shift) for x, shift in zip(halves, (offset, 0.0), strict=True)))
    off_diagonal = inner(
        *(batched_matmul(x[:, :half], x[:, half:].transpose(1, 2)).add_(shift) for x, shift in ((A, offset), (G, 0.0)))
    )
    return on_diagonal.view(num_units, 2).sum(1) + 2.0 * off_diagonal


def inner(left: Tensor, right: Tensor) -> Tensor:
    """The inner product of each unit's two matrices: [U, …], [U, …] → [U]."""
    return torch.linalg.vecdot(left.flatten(1), right.flatten(1))


def squared_norm(x: Tensor) -> Tensor:
    """The squared norm of each unit's tensor: [U, …] → [U], in the wide dtype."""
    flat = x.flatten(1).to(wide_dtype(x.dtype))
    return torch.linalg.vecdot(flat, flat)


def scale_units(x: Tensor, factors: Tensor) -> Tensor:
    """Multiply each unit of ``x`` [U, n, f] by its factor [U]; half precision is rounded once, at the end."""
    return (x * factors.to(wide_dtype(x.dtype))[:, None, None]).to(x.dtype)


def erase_units(x: Tensor, units: Tensor) -> Tensor:
    """A copy of ``x`` [U, …] that is zero at the ``units`` marked true, whatever stood there."""
    return x.masked_fill(units.view(-1, *[1] * (x.dim() - 1)), 0)


def add_to_grad(parameter: nn.Parameter, value: Tensor, scale: float) -> None:
    """``parameter.grad += scale · value``."""
    value = value.reshape(parameter.shape)
    if parameter.grad is None:
        parameter.grad = (value * scale if scale != 1.0 else value).to(parameter.dtype)
    else:
        parameter.grad.add_(value.to(parameter.dtype), alpha=scale)


def add_product_to_grad(parameter: nn.Parameter, left: Tensor, right: Tensor, scale: float) -> None:
    """``parameter.grad += scale · left @ right``, accumulated inside the GEMM where the dtypes allow it."""
    if parameter.grad is not None and parameter.grad.dtype is left.dtype and left.dtype not in _HALF:
        parameter.grad.addmm_(left, right, alpha=scale)
    else:
        add_to_grad(parameter, _matmul(left, right), scale)
