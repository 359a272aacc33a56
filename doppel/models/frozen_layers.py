"""Layers whose frozen weights are held in one dtype and used in another, without a second copy of any weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

_HALF = (torch.bfloat16, torch.float16)
#: Returns a weight as it is held in a dtype to compute in.
Widen = Callable[[Tensor, torch.dtype], Tensor]


class FrozenLinear(nn.Linear):
    """A linear layer whose weight autocast does not copy for the backward pass.

    Where a training computes in another dtype than that of the weight, the product takes a cast that lives no longer
    than it does, and so does its gradient. The numbers are those of a layer whose weight was cast beforehand.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return ``input @ weight.T + bias`` in the dtype of autocast, or else in that of the input."""
        dtype = compute_dtype(input)
        if self.weight.dtype is dtype or not dtype.is_floating_point:
            return F.linear(input, self.weight, self.bias)
        bias = None if self.bias is None else self.bias.to(dtype)
        return frozen_product(input.to(dtype), self.weight, bias, Tensor.to)


class FrozenEmbedding(nn.Embedding):
    """An embedding whose rows come out in the dtype that a training computes in."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the rows: bfloat16 under autocast to it, and else float32, for float16 lacks range."""
        rows = super().forward(input)
        device = rows.device.type
        is_bf16 = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) is torch.bfloat16
        return rows.float() if rows.dtype in _HALF and not (is_bf16 and rows.dtype is torch.bfloat16) else rows


class _Product(torch.autograd.Function):
    """x Wᵀ + b for a weight that is held in another form, which is widened anew in the backward pass."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, widen: Widen) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.widen = widen
        with torch.autocast(input.device.type, enabled=False):
            return F.linear(input, widen(weight, input.dtype), bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (weight,) = ctx.saved_tensors
        with torch.autocast(grad.device.type, enabled=False):
            found = grad.flatten(0, -2) @ ctx.widen(weight, grad.dtype)
            return found.view(*grad.shape[:-1], -1), None, None, None


def frozen_product(input: Tensor, weight: Tensor, bias: Tensor | None, widen: Widen) -> Tensor:
    """Return ``input @ widen(weight, dtype).T + bias``; no widened weight outlives the product, or its gradient."""
    product: Tensor = _Product.apply(input, weight, bias, widen)
    return product


def compute_dtype(input: Tensor) -> torch.dtype:
    """Return the dtype in which a layer multiplies: that of autocast, or else that of its input."""
    device = input.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else input.dtype


def freeze_layers(model: nn.Module) -> None:
    """Let the layers of a model whose weights are all frozen hold these in any dtype, in place.

    Linear layers and embeddings change their class. Whatever else has weights of its own (norms, ``Conv1D``, experts)
    computes outside of autocast with float32 casts of them, for as long as its forward and backward pass take.
    """
    for module in model.modules():
        own = list(module.parameters(recurse=False))
        if not own or any(p.requires_grad or not p.is_floating_point() for p in own):
            continue
        if type(module) is nn.Linear:
            module.__class__ = FrozenLinear
        elif type(module) is nn.Embedding:
            module.__class__ = FrozenEmbedding
        elif type(module) not in (FrozenLinear, FrozenEmbedding):
            module.register_forward_pre_hook(_widen)
            module.register_forward_hook(_narrow, always_call=True)


def _widen(module: nn.Module, args: Any) -> None:
    held = {name: p for name, p in module._parameters.items() if p is not None and p.dtype in _HALF}
    device = next((p.device.type for p in held.values()), "cpu")
    if held and not torch.is_autocast_enabled(device):
        vars(module)["_held"] = held
        module._parameters.update({name: p.float() for name, p in held.items()})  # type: ignore[misc]


def _narrow(module: nn.Module, args: Any, output: Any) -> None:
    module._parameters.update(vars(module).pop("_held", {}))
