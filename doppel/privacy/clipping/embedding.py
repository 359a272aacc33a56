"""``nn.Embedding``: token and position embeddings."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from doppel.privacy.clipping.arithmetic import wide_dtype
from doppel.privacy.clipping.formed import is_small
from doppel.privacy.clipping.groups import LayerInput
from doppel.privacy.clipping.refusals import UnsupportedLayerError
from doppel.privacy.clipping.rule import Capture, LayerRule


class EmbeddingRule(LayerRule):
    """A unit's gradient is EᵀD, with one-hot rows E of its ids and output gradients D [n, d].

    ‖EᵀD‖² = ⟨EEᵀ, DDᵀ⟩, as that of a linear layer, and EEᵀ tells which positions share an id. Of a small table EᵀD is
    formed, as by a small linear layer, which may share the weight. Ids equal to ``padding_idx`` get no gradient, as in
    torch. Hugging Face's ``…ScaledWordEmbedding`` (Gemma, Bart, …) has its rows multiplied by a constant, and so D.

    Ids of shape [1, T] (position ids that the model broadcasts over its batch) are expanded to [rows, T], so
    that every row has a gradient of its own.
    """

    module_type = nn.Embedding
    parameter_names = ("weight",)

    def __init__(self, name: str, module: nn.Module) -> None:
        super().__init__(name, module)
        self.padding_idx: int | None = module.padding_idx  # type: ignore[assignment]
        self.is_formed = is_small(self.weight)
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
            ids = ids if len(ids) == capture.num_rows else ids.expand(capture.num_rows, *ids.shape[1:])
            ids = ids.reshape(capture.num_units, -1)
            D = capture.split(grads)
            D = D.to(wide_dtype(D.dtype))  # here is no product to speed up by half precision
            if self.scale != 1.0:
                D = D * self.scale
            if self.padding_idx is not None:
                D = D.masked_fill((ids == self.padding_idx).unsqueeze(-1), 0)
            if self.is_formed:
                is_added, place = capture.holds(self.weight), capture.place(self.weight)
                (place if is_added else place.zero_()).scatter_add_(1, ids.long().unsqueeze(2).expand(D.shape), D)
                return (None,)
            capture.keep(LayerInput(ids, D.flatten(0, 1)), self.weight, _add_rows, D, ids.flatten())
        return (None,)


def _add_rows(grad: Tensor, ids: Tensor, rows: Tensor, scale: float) -> None:
    grad.index_add_(0, ids, rows.to(grad.dtype), alpha=scale)


def refuse_flat_ids(name: str, output: Tensor) -> None:
    """Refuse the output of an embedding of ids [n], which nothing tells rows from positions."""
    if output.dim() < 3:
        raise UnsupportedLayerError(
            f"embedding '{name}' was given ids of one dimension, which may run over rows or over positions: "
            "give ids of shape [rows, positions], or freeze it"
        )
