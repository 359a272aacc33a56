"""Dense layers: ``nn.Linear`` and Hugging Face's ``Conv1D`` (a Linear with its weight stored transposed)."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from doppel.privacy.clipping.arithmetic import (
    add_product_to_grad,
    add_to_grad,
    centre_operands,
    cross_inner,
    formed_norm,
    gemm_operand,
    gram_inner,
    matmul,
    room_of_gram,
    scale_units,
    squared_norm,
    wide_dtype,
)
from doppel.privacy.clipping.embedding import EmbeddingRule
from doppel.privacy.clipping.rule import LayerRule, UnitLayout

#: A layer is narrow if it has at most so many inputs or outputs, and so many times as many of the other.
_NARROW, _NARROWER = 32, 8


def is_conv1d(module: nn.Module) -> bool:
    """Return whether ``module`` is Hugging Face's ``Conv1D``, told by name: transformers need not be imported."""
    return type(module).__name__ == "Conv1D" and type(module).__module__ == "transformers.pytorch_utils"


class LinearRule(LayerRule):
    """A unit's weight gradient is GᵀA, with inputs A [n, d] and output gradients G [n, p] at its n positions.

    *Ghost norm* (Li et al., 2022): ‖GᵀA‖² = ⟨AAᵀ, GGᵀ⟩, which needs n² numbers instead of d·p. The bias is a
    weight on a constant input of 1, so both together are ⟨AAᵀ + 1, GGᵀ⟩: the bias costs nothing.

    For 2n² > d·p the per-unit gradient is formed instead (Bu et al., 2023, "mixed" ghost clipping). It then
    takes d·p < √2·n·√(dp) ≤ n·(d + p) numbers, so less memory than A and G, which are freed.

    *Narrow layers*, such as the factors of LoRA, form it always: it takes about as many numbers as A and G, less work
    than the grams, and a vector times the formed gradients gives the clipped sum. What is clipped is then what the norm
    was taken of, so that its room for rounding is that of :func:`.arithmetic.formed_norm` alone. The widths decide,
    which are public: whoever is beside a unit changes neither the way nor the room.

    *Tied to an embedding*, the weight has the gradient GᵀA + EᵀD (see :class:`.embedding.EmbeddingRule`), with
    ‖GᵀA + EᵀD‖² = ‖GᵀA‖² + ‖EᵀD‖² + 2⟨GᵀA, EᵀD⟩ and, E being one-hot, ⟨GᵀA, EᵀD⟩ = Σ_{s,t} G[s, id_t] (ADᵀ)_st: only
    n × n entries of G, gathered at the ids, are needed. Leaving the term out (as if the two uses were two weights) lets
    the norm of a clipped gradient exceed the bound.

    *Rounding.* Terms of the ghost norm may be large and cancel; :func:`.arithmetic.rounding` bounds what float32 may
    then hide. In the cross term R² is Σ |G[s, id_t]| ‖a_s‖‖d_t‖.
    """

    module_type = nn.Linear

    def __init__(self, name: str, module: nn.Module) -> None:
        self.is_transposed = is_conv1d(module)
        super().__init__(name, module)
        self._embedding: EmbeddingRule | None = None

    def tie(self, embedding: EmbeddingRule) -> None:
        """Note that the weight is that of ``embedding`` too."""
        self._embedding = embedding

    @classmethod
    def matches(cls, module: nn.Module) -> bool:
        return super().matches(module) or is_conv1d(module)

    def summarise(self, inputs: Tensor, grads: Tensor, layout: UnitLayout) -> tuple[Tensor, dict[str, Tensor]]:
        G = layout.split(grads, grads.shape[-1])
        if not self.trains_weight:
            bias_grads = G.sum(1, dtype=wide_dtype(G.dtype))
            return squared_norm(bias_grads), {"bias_grads": bias_grads}
        A = layout.split(inputs, inputs.shape[-1]).to(G.dtype)  # autocast: the GEMM operand, not its float32 source
        (n, d), p = A.shape[1:], G.shape[2]
        A, G = gemm_operand(A), gemm_operand(G)
        is_narrow = min(d, p) <= _NARROW and max(d, p) >= _NARROWER * min(d, p)
        if (is_narrow or 2 * n * n > d * p) and self._embedding is None:
            return self._form_gradients(A, G, is_narrow)
        return gram_inner(A, G, offset=1.0 if self.trains_bias else 0.0), {"inputs": A, "grads": G}

    def _form_gradients(self, A: Tensor, G: Tensor, is_narrow: bool) -> tuple[Tensor, dict[str, Tensor]]:
        left, right = (A, G) if self.is_transposed else (G, A)
        kept = {"weight_grads": matmul(left.transpose(1, 2), right)}
        if self.trains_bias:
            kept["bias_grads"] = G.sum(1, dtype=wide_dtype(G.dtype))
        if is_narrow:
            return formed_norm(kept.values()), kept
        squared = sum(squared_norm(gradient)[0] for gradient in kept.values())
        # as much room as the ghost norm has: which way is taken depends on the longest unit beside this one
        room = room_of_gram(A, G, offset=1.0 if self.trains_bias else 0.0)
        return torch.stack([cast(Tensor, squared), room]), kept

    def cross_term(self) -> Tensor | None:
        if self._embedding is None or self._embedding.squared_norms is None or self.squared_norms is None:
            return None
        ids, D = self._embedding.kept["ids"], self._embedding.kept["grads"]
        A, G = self.kept["inputs"], self.kept["grads"]
        G_at_ids = G.gather(2, ids.unsqueeze(1).expand(-1, G.shape[1], -1))
        return 2.0 * cross_inner(G_at_ids, A.to(D.dtype), D)

    def add_clipped(self, factors: Tensor, scale: float) -> None:
        self.add_formed(factors, scale)
        if "grads" not in self.kept:
            return
        A, G = self.kept["inputs"], self.kept["grads"]
        if self.trains_bias and self.bias is not None:
            wide = wide_dtype(G.dtype)
            per_position = factors.to(wide).repeat_interleave(G.shape[1])
            add_to_grad(self.bias, torch.mv(G.flatten(0, 1).to(wide).t(), per_position), scale)
        if G.dtype is torch.float16:
            A, G, scale = centre_operands(A, G, factors, scale, self.bound)
        elif A.shape[2] <= G.shape[2]:
            A = scale_units(A, factors)
        else:
            G = scale_units(G, factors)
        left, right = (A, G) if self.is_transposed else (G, A)
        add_product_to_grad(self.weight, left.flatten(0, 1).t(), right.flatten(0, 1), scale)
