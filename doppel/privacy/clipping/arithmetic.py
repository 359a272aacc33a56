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


def batched_matmul(left: Tensor, right: Tensor) -> Tensor:
    """``left @ right`` for [U, m, n] and [U, n, p], formed in the wide dtype."""
    if left.dtype in _HALF:
        if left.is_cuda:
            return torch.bmm(left, right, out_dtype=torch.float32)
        return torch.bmm(left.float(), right.float())
    return torch.bmm(left, right)


def _matmul(left: Tensor, right: Tensor) -> Tensor:
    if left.dtype in _HALF:
        if left.is_cuda:
            return torch.mm(left, right, out_dtype=torch.float32)
        return torch.mm(left.float(), right.float())
    return torch.mm(left, right)


def gram(x: Tensor) -> Tensor:
    """``x xᵀ`` for each unit: [U, n, f] → [U, n, n]."""
    if x.dtype in _HALF and not x.is_cuda:
        x = x.float()
    return batched_matmul(x, x.transpose(1, 2))


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
