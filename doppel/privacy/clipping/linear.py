"""Dense layers: ``nn.Linear`` and Hugging Face's ``Conv1D`` (a Linear with its weight stored transposed)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from doppel.privacy.clipping.arithmetic import add_product, bmm_into, gemm_operand, matmul
from doppel.privacy.clipping.formed import is_small
from doppel.privacy.clipping.rule import Capture, LayerRule

#: A layer is narrow if it has at most so many inputs or outputs, and so many times as many of the other.
_NARROW, _NARROWER = 32, 8


def is_conv1d(module: nn.Module) -> bool:
    """Return whether ``module`` is Hugging Face's ``Conv1D``, told by name: transformers need not be imported."""
    return type(module).__name__ == "Conv1D" and type(module).__module__ == "transformers.pytorch_utils"


class LinearRule(LayerRule):
    """A unit's weight gradient is GᵀA, with inputs A [n, d] and output gradients G [n, p] at its n positions.

    *Ghost norm* (Li et al., 2022): ‖GᵀA‖² = ⟨AAᵀ, GGᵀ⟩, which needs n² numbers instead of d·p. Layers that read one
    input have one AAᵀ, and one copy of it that is scaled by the clip factors.

    *Narrow layers*, such as the factors of LoRA, and small ones form a unit's gradient: it takes about as many numbers
    as A and G, less work than the grams, and a vector times the formed gradients gives the clipped sum. What is clipped
    is then what the norm was taken of, so that its room for rounding is that of :class:`.formed.FormedPart` alone.
    The widths decide, which are public, and not the positions (as in Bu et al., 2023, "mixed" ghost clipping): whoever
    is beside a unit, and makes it padded, changes neither the way nor the room. *Biases* have the gradient Σₛgₛ, which
    is formed as well.

    *Tied to an embedding*, the weight has the gradient GᵀA + EᵀD (see :class:`.embedding.EmbeddingRule`), with
    ‖GᵀA + EᵀD‖² = ‖GᵀA‖² + ‖EᵀD‖² + 2⟨GᵀA, EᵀD⟩ and, E being one-hot, ⟨GᵀA, EᵀD⟩ = Σ_{s,t} G[s, id_t] (ADᵀ)_st: only
    n × n entries of G, gathered at the ids, are needed. Leaving the term out (as if the two uses were two weights) lets
    the norm of a clipped gradient exceed the bound. Of a small weight both are added up where units' gradients are
    formed, whichever comes first, so that the norm is that of their sum.

    *Rounding.* Terms of the ghost norm may be large and cancel; :class:`.groups.Grams` bounds what float32 may then
    hide, and :func:`.arithmetic.cross_inner` what of the cross term.
    """

    module_type = nn.Linear

    def __init__(self, name: str, module: nn.Module) -> None:
        self.is_transposed = is_conv1d(module)
        super().__init__(name, module)
        low, high = sorted(self.weight.shape)
        self.is_formed = (low <= _NARROW and high >= _NARROWER * low) or is_small(self.weight)

    @classmethod
    def matches(cls, module: nn.Module) -> bool:
        return super().matches(module) or is_conv1d(module)

    def compute(self, ctx: Any, x: Tensor) -> Tensor:
        capture: Capture = ctx.capture
        dtype, ctx.shared = None, None
        if torch._C._is_any_autocast_enabled() and x.dtype is not torch.float64:
            device = x.device.type
            dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        if dtype is not None or not self.is_formed:
            x, ctx.shared = capture.read(x, dtype)
        x = x.contiguous()  # so that the same as [rows · n, d] is no copy
        weight, bias = self.weight, self.bias
        if dtype is not None:
            held = capture.weights.of(dtype)
            weight, bias = held[id(weight)], None if bias is None else held[id(bias)]
        if not self.is_transposed:
            ctx.save_for_backward(x, None, weight)
            return F.linear(x, weight, bias)
        flat = x.flatten(0, -2)
        ctx.save_for_backward(x, flat, weight.t())
        return torch.addmm(bias, flat, weight).view(*x.shape[:-1], -1)  # type: ignore[arg-type]

    def pull(self, ctx: Any, grads: Tensor) -> tuple[Tensor | None]:
        capture: Capture = ctx.capture
        x, flat, weight = ctx.saved_tensors  # weight [p, d]
        flat_grads = None if self.is_formed else grads.flatten(0, -2)
        if capture.is_open:
            G = capture.split(grads)
            if self.bias is not None and self.trains_bias:
                place = capture.place(self.bias)
                torch.sum(G, 1, dtype=place.dtype, out=place)
            if self.trains_weight and flat_grads is None:
                left, right = (capture.split(x), G) if self.is_transposed else (G, capture.split(x))
                if capture.holds(self.weight):
                    capture.place(self.weight).add_(matmul(left.mT, right))
                else:
                    bmm_into(left.mT, right, capture.place(self.weight))
            elif self.trains_weight and flat_grads is not None:
                if ctx.shared.A is None:
                    ctx.shared.A, ctx.shared.flat_A = _operands(
                        capture.split(x), x.flatten(0, -2) if flat is None else flat
                    )
                add = _add_transposed if self.is_transposed else add_product
                capture.keep(ctx.shared, self.weight, add, *_operands(G, flat_grads))
        if not ctx.needs_input_grad[3]:
            return (None,)
        found = torch.matmul(grads, weight) if flat_grads is None else torch.mm(flat_grads, weight).view(x.shape)
        return (found,)


def _operands(x: Tensor, flat: Tensor) -> tuple[Tensor, Tensor]:
    """[U, n, f] and the same as [U·n, f], as they are multiplied."""
    wide = gemm_operand(x)
    return (x, flat) if wide is x else (wide, wide.flatten(0, 1))


def _add_transposed(grad: Tensor, G: Tensor, A: Tensor, scale: float) -> None:
    add_product(grad, A, G, scale)
