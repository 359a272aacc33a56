"""Dense layers: ``nn.Linear`` and Hugging Face's ``Conv1D`` (a Linear with its weight stored transposed)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from doppel.privacy.clipping.arithmetic import Norms, add_product_to_grad, bmm_into, cross_inner, gemm_operand
from doppel.privacy.clipping.embedding import EmbeddingRule
from doppel.privacy.clipping.groups import LayerInput
from doppel.privacy.clipping.observed import ObservedRule
from doppel.privacy.clipping.rule import Capture

#: A layer is narrow if it has at most so many inputs or outputs, and so many times as many of the other; and small if
#: its weight has no more numbers than the Gram matrices of units of 32 positions.
_NARROW, _NARROWER, _SMALL = 32, 8, 2 * 32 * 32


def is_conv1d(module: nn.Module) -> bool:
    """Return whether ``module`` is Hugging Face's ``Conv1D``, told by name: transformers need not be imported."""
    return type(module).__name__ == "Conv1D" and type(module).__module__ == "transformers.pytorch_utils"


class LinearRule(ObservedRule):
    """A unit's weight gradient is GᵀA, with inputs A [n, d] and output gradients G [n, p] at its n positions.

    *Ghost norm* (Li et al., 2022): ‖GᵀA‖² = ⟨AAᵀ, GGᵀ⟩, which needs n² numbers instead of d·p. Layers that read one
    input have one AAᵀ, and one copy of it that is scaled by the clip factors.

    *Narrow layers*, such as the factors of LoRA, and small ones form a unit's gradient: it takes about as many numbers
    as A and G, less work than the grams, and a vector times the formed gradients gives the clipped sum. What is clipped
    is then what the norm was taken of, so that its room for rounding is that of :func:`.arithmetic.formed_norm` alone.
    The widths decide, which are public, and not the positions (as in Bu et al., 2023, "mixed" ghost clipping): whoever
    is beside a unit, and makes it padded, changes neither the way nor the room. *Biases* have the gradient Σₛgₛ, which
    is formed as well.

    *Tied to an embedding*, the weight has the gradient GᵀA + EᵀD (see :class:`.embedding.EmbeddingRule`), with
    ‖GᵀA + EᵀD‖² = ‖GᵀA‖² + ‖EᵀD‖² + 2⟨GᵀA, EᵀD⟩ and, E being one-hot, ⟨GᵀA, EᵀD⟩ = Σ_{s,t} G[s, id_t] (ADᵀ)_st: only
    n × n entries of G, gathered at the ids, are needed. Leaving the term out (as if the two uses were two weights) lets
    the norm of a clipped gradient exceed the bound.

    *Rounding.* Terms of the ghost norm may be large and cancel; :class:`.groups.Grams` bounds what float32 may then
    hide, and :func:`.arithmetic.cross_inner` what of the cross term.
    """

    module_type = nn.Linear

    def __init__(self, name: str, module: nn.Module) -> None:
        self.is_transposed = is_conv1d(module)
        super().__init__(name, module)
        self.embedding: EmbeddingRule | None = None
        low, high = sorted(self.weight.shape)
        self._is_small = (low <= _NARROW and high >= _NARROWER * low) or low * high <= _SMALL

    @property
    def is_formed(self) -> bool:
        """Whether per-unit gradients of the weight are formed."""
        return self._is_small and self.embedding is None

    def tie(self, embedding: EmbeddingRule) -> None:
        """Note that the weight is that of ``embedding`` too."""
        self.embedding = embedding

    @classmethod
    def matches(cls, module: nn.Module) -> bool:
        return super().matches(module) or is_conv1d(module)

    # -------------------------------------------------------------------------------- forward and backward
    def compute(self, ctx: Any, x: Tensor) -> Tensor:
        device, dtype, ctx.shared = x.device.type, None, None
        if torch.is_autocast_enabled(device) and x.dtype is not torch.float64:
            dtype = torch.get_autocast_dtype(device)
        if dtype is not None or not self.is_formed:
            x, ctx.shared = ctx.capture.read(x, dtype or x.dtype)
        x = x.contiguous()  # so that the same as [rows · n, d] is no copy
        held = ctx.capture.weights.of(dtype)
        weight, transposed = held[id(self.weight)]
        to_output, to_input = (weight, transposed) if self.is_transposed else (transposed, weight)
        flat = x.flatten(0, -2) if x.dim() > 2 else x
        ctx.save_for_backward(x, flat, to_input)
        if self.bias is None:
            output = torch.mm(flat, to_output)
        else:
            output = torch.addmm(held[id(self.bias)][0], flat, to_output)
        return output.view(*x.shape[:-1], output.shape[1]) if x.dim() > 2 else output

    def pull(self, ctx: Any, capture: Capture | None, grads: Tensor, needs_input: bool) -> Tensor | None:
        x, flat, to_input = ctx.saved_tensors
        flat_grads = grads.flatten(0, -2) if grads.dim() > 2 else grads
        if capture is not None:
            self._observe(capture, ctx.shared, (x, flat), (capture.split(grads), flat_grads))
        if not needs_input:
            return None
        found = torch.mm(flat_grads, to_input)
        return found.view(x.shape) if x.dim() > 2 else found

    def _observe(
        self, capture: Capture, shared: LayerInput | None, inputs: tuple[Tensor, Tensor], grads: tuple[Tensor, Tensor]
    ) -> None:
        """Take A and G, as [U, n, …] and as [U·n, …]."""
        if self.trains_bias:
            assert self.bias is not None
            place = capture.place(self.bias, grads[0])
            torch.sum(grads[0], 1, dtype=place.dtype, out=place)
        if not self.trains_weight:
            return
        G, flat_G = _operands(*grads)
        if self.is_formed:
            A = gemm_operand(capture.split(inputs[0]))
            left, right = (A, G) if self.is_transposed else (G, A)
            bmm_into(left.mT, right, capture.place(self.weight, G))
            return
        assert shared is not None
        if shared.A is None:
            shared.A, shared.flat_A = _operands(capture.split(inputs[0]), inputs[1])
        capture.keep(self, shared, G, flat_G)

    # -------------------------------------------------------------------------------- norm and clipped sum
    def cross_term(self, A: Tensor, G: Tensor) -> Norms | None:
        """Return half of what a tied weight adds to the squared norms of its two modules, and its room."""
        if self.embedding is None or not self.embedding.kept:
            return None
        ids, D = self.embedding.kept["ids"], self.embedding.kept["grads"]
        return cross_inner(G.gather(2, ids.unsqueeze(1).expand(-1, G.shape[1], -1)), A.to(D.dtype), D)

    def add_product(self, left: Tensor, right: Tensor, scale: float) -> None:
        """Add ``scale · GᵀA`` to the weight's ``grad``, for G [U·n, p] and A [U·n, d]: one GEMM."""
        left, right = (right, left) if self.is_transposed else (left, right)
        add_product_to_grad(self.weight, left.t(), right, scale)


def _operands(x: Tensor, flat: Tensor) -> tuple[Tensor, Tensor]:
    """[U, n, f] and the same as [U·n, f], as they are multiplied."""
    wide = gemm_operand(x)
    return (x, flat) if wide is x else (wide, wide.flatten(0, 1))
