"""``nn.Embedding``: token and position embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from doppel.privacy.clipping.arithmetic import (
    Norms,
    erase_units,
    gemm_operand,
    gradient_of,
    same_id_inner,
    wide_dtype,
)
from doppel.privacy.clipping.rule import Capture, HookedRule, UnsupportedLayerError


class EmbeddingRule(HookedRule):
    """A unit's gradient is EᵀD, with one-hot rows E of its ids and output gradients D [n, d].

    ‖EᵀD‖² = Σ_{s,t} [id_s = id_t] (DDᵀ)_st: positions that share an id add up before they are squared. Ids
    equal to ``padding_idx`` get no gradient, as in torch. Hugging Face's ``…ScaledWordEmbedding`` (Gemma, Bart, …) has
    its rows multiplied by a constant, and so D.

    Ids of shape [1, T] (position ids that the model broadcasts over its batch) are expanded to [rows, T], so
    that every row has a gradient of its own.
    """

    module_type = nn.Embedding
    parameter_names = ("weight",)

    def __init__(self, name: str, module: nn.Module) -> None:
        super().__init__(name, module)
        self.reset()
        self.padding_idx: int | None = module.padding_idx  # type: ignore[assignment]
        self.scale = float(getattr(module, "embed_scale", 1.0))

    @classmethod
    def matches(cls, module: nn.Module) -> bool:
        """Match ``nn.Embedding``, or one times a constant, told by name and tried on one id: a name proves nothing."""
        if super().matches(module) or not type(module).__name__.endswith("ScaledWordEmbedding"):
            return super().matches(module)
        ids = torch.full((1, 1), len(module.weight) - 1, device=module.weight.device)  # type: ignore[arg-type]
        with torch.no_grad():
            expected = F.embedding(ids, module.weight) * getattr(module, "embed_scale", 1.0)  # type: ignore[arg-type]
            return torch.allclose(module(ids), expected)

    def expand_output(self, output: Tensor, num_rows: int) -> Tensor:
        refuse_flat_ids(self.name, output)
        if output.shape[0] == 1 and num_rows > 1:
            output = output.expand(num_rows, *output.shape[1:])
        return super().expand_output(output, num_rows)

    def observe(self, capture: Capture, inputs: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        ids = inputs[0].expand(capture.num_rows, *inputs[0].shape[1:]).reshape(capture.num_units, -1)
        D = gemm_operand(capture.split(grads[0]))
        if self.scale != 1.0:
            D = D * self.scale
        if self.padding_idx is not None:
            D = D.masked_fill((ids == self.padding_idx).unsqueeze(-1), 0)
        self.kept = {"ids": ids, "grads": D}

    def finish(self, capture: Capture) -> Norms | None:
        return same_id_inner(self.kept["grads"], self.kept["ids"]) if self.kept else None

    def erase(self, units: Tensor) -> None:
        self.kept["grads"] = erase_units(self.kept["grads"], units)

    def add_clipped(self, weights: Tensor) -> None:
        ids, D = self.kept["ids"], self.kept["grads"]  # in float32: here is no product to speed up by half precision
        rows = D * weights.to(wide_dtype(D.dtype)).view(-1, 1, 1)
        grad = gradient_of(self.weight)
        grad.index_add_(0, ids.flatten(), rows.flatten(0, 1).to(grad.dtype))


def refuse_flat_ids(name: str, output: Tensor) -> None:
    """Refuse the output of an embedding of ids [n], which nothing tells rows from positions."""
    if output.dim() < 3:
        raise UnsupportedLayerError(
            f"embedding '{name}' was given ids of one dimension, which may run over rows or over positions: "
            "give ids of shape [rows, positions], or freeze it"
        )
