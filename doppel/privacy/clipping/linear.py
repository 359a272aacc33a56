"""Dense layers: ``nn.Linear`` and Hugging Face's ``Conv1D`` (a Linear with its weight stored transposed)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from doppel.privacy.clipping.arithmetic import (
    add_product_to_grad,
    add_to_grad,
    batched_matmul,
    gemm_operand,
    gram_inner,
    scale_units,
    squared_norm,
    wide_dtype,
)
from doppel.privacy.clipping.fused_head import FusedHead
from doppel.privacy.clipping.rule import LayerRule, UnitLayout, called_twice_error


def is_conv1d(module: nn.Module) -> bool:
    """Whether ``module`` is Hugging Face's ``Conv1D``, told by name: transformers need not be imported."""
    return type(module).__name__ == "Conv1D" and type(module).__module__ == "transformers.pytorch_utils"


class LinearRule(LayerRule):
    """A unit's weight gradient is GᵀA, with inputs A [n, d] and output gradients G [n, p] at its n positions.

    *Ghost norm* (Li et al., 2022): ‖GᵀA‖² = ⟨AAᵀ, GGᵀ⟩, which needs n² numbers instead of d·p. The bias is a
    weight on a constant input of 1, so both together are ⟨AAᵀ + 1, GGᵀ⟩: the bias costs nothing.

    For 2n² > d·p the per-unit gradient is formed instead (Bu et al., 2023, "mixed" ghost clipping). It then
    takes d·p < √2·n·√(dp) ≤ n·(d + p) numbers, so less memory than A and G, which are freed.
    """

    def __init__(self, name: str, module: nn.Module, keep_factors: bool = False) -> None:
        self.is_transposed = is_conv1d(module)
        self.keep_factors = keep_factors
        super().__init__(name, module)

    @classmethod
    def matches(cls, module: nn.Module) -> bool:
        """Exact types only: a subclass may compute something else."""
        return type(module) is nn.Linear or is_conv1d(module)

    @property
    def is_head(self) -> bool:
        """Whether a :class:`~doppel.head_loss.HeadLoss` may use the module."""
        return not self.is_transposed

    def reset(self) -> None:
        super().reset()
        self.fused_head: FusedHead | None = None

    def start_fused_head(self, layout: UnitLayout, ids: Tensor | None) -> FusedHead:
        """A :class:`~doppel.head_loss.HeadLoss` uses this layer, whose forward is then never called.

        Args:
            layout: Units and rows of the micro-batch.
            ids: Token ids [rows, T] that the embedding was given, if its weight is tied to this one.
        """
        if self.is_recorded:
            raise called_twice_error(self)
        self.is_recorded = True
        ids = None if ids is None else ids.reshape(layout.num_units, -1)
        self.fused_head = FusedHead(layout, self.trains_weight, self.trains_bias, ids)
        return self.fused_head

    def take_fused_norms(self) -> None:
        """Take over the norms that the fused head formed in its backward pass, if it had one."""
        if self.fused_head is not None and self.fused_head.squared_norms is not None:
            self.squared_norms, self.operand_dtype = self.fused_head.squared_norms, self.fused_head.operand_dtype

    def summarise(self, inputs: Tensor, grads: Tensor, layout: UnitLayout) -> tuple[Tensor, dict[str, Tensor]]:
        G = layout.split(grads, grads.shape[-1])
        if not self.trains_weight:
            bias_grads = G.sum(1, dtype=wide_dtype(G.dtype))
            return squared_norm(bias_grads), {"bias_grads": bias_grads}
        A = layout.split(inputs, inputs.shape[-1]).to(G.dtype)  # autocast: the GEMM operand, not its float32 source
        (n, d), p = A.shape[1:], G.shape[2]
        if 2 * n * n > d * p and not self.keep_factors:
            return self._form_gradients(A, G)
        A, G = gemm_operand(A), gemm_operand(G)
        return gram_inner(A, G, offset=1.0 if self.trains_bias else 0.0), {"inputs": A, "grads": G}

    def _form_gradients(self, A: Tensor, G: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        left, right = (A, G) if self.is_transposed else (G, A)
        kept = {"weight_grads": batched_matmul(left.transpose(1, 2), right)}
        if self.trains_bias:
            kept["bias_grads"] = G.sum(1, dtype=wide_dtype(G.dtype))
        return sum(map(squared_norm, kept.values())), kept  # type: ignore[return-value]

    def erase(self, units: Tensor) -> None:
        super().erase(units)
        if self.fused_head is not None:
            self.fused_head.erase(units)

    def add_clipped(self, factors: Tensor, scale: float) -> None:
        if self.fused_head is not None:
            self.fused_head.add_clipped(self.weight, self.bias, factors, scale)
        self.add_formed(factors, scale)
        if "grads" not in self.kept:
            return
        A, G = self.kept["inputs"], self.kept["grads"]
        if self.trains_bias and self.bias is not None:
            wide = wide_dtype(G.dtype)
            per_position = factors.to(wide).repeat_interleave(G.shape[1])
            add_to_grad(self.bias, torch.mv(G.flatten(0, 1).to(wide).t(), per_position), scale)
        if A.shape[2] <= G.shape[2]:
            A = scale_units(A, factors)
        else:
            G = scale_units(G, factors)
        left, right = (A, G) if self.is_transposed else (G, A)
        add_product_to_grad(self.weight, left.flatten(0, 1).t(), right.flatten(0, 1), scale)
