"""Dense layers: ``nn.Linear`` and Hugging Face's ``Conv1D`` (a Linear with its weight stored transposed)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from doppel.privacy.clipping.arithmetic import (
    add_product_to_grad,
    add_to_grad,
    batched_matmul,
    erase_units,
    gram,
    inner,
    scale_units,
    squared_norm,
    wide_dtype,
)
from doppel.privacy.clipping.rule import LayerRule, UnitLayout


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

    def reset(self) -> None:
        super().reset()
        self._weight_grads: Tensor | None = None  # [U, *weight.shape], when formed
        self._bias_grads: Tensor | None = None  # [U, p], when formed

    @property
    def factors(self) -> tuple[Tensor, Tensor]:
        """A [U, n, d] and G [U, n, p] of the observed micro-batch (for the cross term of a tied weight)."""
        if self._inputs is None or self._grads is None:
            raise RuntimeError(f"the factors of '{self.name}' were not kept")
        return self._inputs, self._grads

    def _squared_norms(self, inputs: Tensor, grads: Tensor, layout: UnitLayout) -> Tensor:
        G = layout.split(grads, grads.shape[-1])
        if not self.trains_weight:
            self._inputs, self._bias_grads = None, G.sum(1, dtype=wide_dtype(G.dtype))
            return squared_norm(self._bias_grads)
        A = layout.split(inputs, inputs.shape[-1]).to(G.dtype)  # autocast: the GEMM operand, not its float32 source
        (n, d), p = A.shape[1:], G.shape[2]
        if 2 * n * n > d * p and not self.keep_factors:
            return self._form_gradients(A, G)
        self._inputs, self._grads = A, G
        AA = gram(A)
        if self.trains_bias:
            AA += 1.0
        return inner(AA, gram(G))

    def _form_gradients(self, A: Tensor, G: Tensor) -> Tensor:
        self._inputs = None
        left, right = (A, G) if self.is_transposed else (G, A)
        self._weight_grads = batched_matmul(left.transpose(1, 2), right)
        squared = squared_norm(self._weight_grads)
        if self.trains_bias:
            self._bias_grads = G.sum(1, dtype=wide_dtype(G.dtype))
            squared += squared_norm(self._bias_grads)
        return squared

    def erase(self, units: Tensor) -> None:
        for name in ("_inputs", "_grads", "_weight_grads", "_bias_grads"):
            value = getattr(self, name)
            if value is not None:
                setattr(self, name, erase_units(value, units))

    def add_clipped(self, factors: Tensor, scale: float) -> None:
        if self._weight_grads is not None:
            total = factors.to(self._weight_grads.dtype) @ self._weight_grads.flatten(1)
            add_to_grad(self.weight, total, scale)
        if self._bias_grads is not None and self.bias is not None:
            add_to_grad(self.bias, factors.to(self._bias_grads.dtype) @ self._bias_grads, scale)
        if self._grads is None or self._inputs is None:
            return
        A, G = self._inputs, self._grads
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
