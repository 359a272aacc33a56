"""``nn.Embedding``: token and position embeddings."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from doppel.privacy.clipping.arithmetic import (
    Norms,
    cross_inner,
    erase_units,
    gemm_operand,
    gradient_of,
    same_id_inner,
    wide_dtype,
)
from doppel.privacy.clipping.refusals import UnsupportedLayerError
from doppel.privacy.clipping.rule import Capture, Kept, LayerRule


class EmbeddingRule(LayerRule):
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
        self.padding_idx: int | None = module.padding_idx  # type: ignore[assignment]
        self.scale = float(getattr(module, "embed_scale", 1.0))

    @property
    def formed_parameters(self) -> list[nn.Parameter]:
        return []

    @classmethod
    def matches(cls, module: nn.Module) -> bool:
        """Match ``nn.Embedding``, or one times a constant, told by name and tried on one id: a name proves nothing."""
        if super().matches(module) or not type(module).__name__.endswith("ScaledWordEmbedding"):
            return super().matches(module)
        ids = torch.full((1, 1), len(module.weight) - 1, device=module.weight.device)  # type: ignore[arg-type]
        with torch.no_grad():
            expected = F.embedding(ids, module.weight) * getattr(module, "embed_scale", 1.0)  # type: ignore[arg-type]
            return torch.allclose(module(ids), expected)

    def compute(self, ctx: Any, ids: Tensor) -> Tensor:
        output: Tensor = self.plain_forward(ids)
        refuse_flat_ids(self.name, output)
        num_rows = ctx.capture.num_rows
        ctx.save_for_backward(ids)
        return output if len(output) != 1 else output.expand(num_rows, *output.shape[1:])

    def pull(self, ctx: Any, grads: Tensor) -> tuple[None]:
        capture: Capture = ctx.capture
        if capture.is_open:
            (ids,) = ctx.saved_tensors
            ids = ids.expand(capture.num_rows, *ids.shape[1:]).reshape(capture.num_units, -1)
            D = gemm_operand(capture.split(grads))
            if self.scale != 1.0:
                D = D * self.scale
            if self.padding_idx is not None:
                D = D.masked_fill((ids == self.padding_idx).unsqueeze(-1), 0)
            capture.kept.append(EmbeddingGradient(self.weight, ids, D, capture.tied))
        return (None,)


class EmbeddingGradient(Kept):
    """EᵀD of each unit, from its ids [U, n] and gradients D [U, n, d]; and its inner product with a tied layer's."""

    def __init__(self, weight: nn.Parameter, ids: Tensor, D: Tensor, tied: dict[int, tuple[Tensor, Tensor]]) -> None:
        self.parameters, self.tensors, self._tied = [weight], (ids, D), tied

    def norms(self) -> list[Norms]:
        ids, D = self.tensors
        A, G = self._tied.pop(id(self.parameters[0]), (None, None))
        if A is None or G is None:
            return [same_id_inner(D, ids)]
        cross = cross_inner(G.gather(2, ids.unsqueeze(1).expand(-1, G.shape[1], -1)), A.to(D.dtype), D)
        return [same_id_inner(D, ids), cross, cross]  # 2⟨·, ·⟩

    def add_clipped(self, weights: Tensor, erased: Tensor | None) -> None:
        ids, D = self.tensors  # in float32: here is no product to speed up by half precision
        rows = (D if erased is None else erase_units(D, erased)) * weights.to(wide_dtype(D.dtype)).view(-1, 1, 1)
        grad = gradient_of(self.parameters[0])
        grad.index_add_(0, ids.flatten(), rows.flatten(0, 1).to(grad.dtype))


def refuse_flat_ids(name: str, output: Tensor) -> None:
    """Refuse the output of an embedding of ids [n], which nothing tells rows from positions."""
    if output.dim() < 3:
        raise UnsupportedLayerError(
            f"embedding '{name}' was given ids of one dimension, which may run over rows or over positions: "
            "give ids of shape [rows, positions], or freeze it"
        )
