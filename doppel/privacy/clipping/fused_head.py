"""The output head when it is fused with its loss: norms by chunks, and the clipped weight gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from doppel.head_loss import HeadGradients
from doppel.privacy.clipping.arithmetic import (
    add_product_to_grad,
    add_to_grad,
    cross_inner,
    gram,
    gram_inner,
    lengths,
    rounding,
)
from doppel.privacy.clipping.rule import LayerRule, UnitLayout, UnsupportedLayerError


class FusedHead:
    """Takes the place of the head's output gradients, which are never all held, in the head's rule.

    With position-weighted hidden states A and G = P − onehot at a unit's positions, and upstream gradients u of the
    losses of its k rows, the unit's weight gradient is Σᵣ uᵣ GᵣᵀAᵣ. Its squared norm is uᵀMu for the k × k matrix
    M_rs = ⟨AᵣAₛᵀ, GᵣGₛᵀ⟩, which is formed chunk by chunk in the forward pass, before u is known. Rounding may hide a
    share of (Σᵣ |uᵣ| Rᵣ)², where Rᵣ is what the row's positions can reach (see :func:`.arithmetic.rounding`).

    Args:
        rule: The head's rule, which is given the norms.
        layout: Units and rows of the micro-batch.
        ids: Token ids [U, m] of the embedding that the weight is tied to, or None.
    """

    def __init__(self, rule: LayerRule, layout: UnitLayout, ids: Tensor | None) -> None:
        self.rows_per_unit = layout.rows_per_unit
        self._rule = rule
        self._layout = layout
        self._ids = ids if rule.trains_weight else None
        self._gradients: HeadGradients | None = None
        self._inner_products: list[Tensor] = []
        self._reach: list[Tensor] = []
        self._grads_at_ids: list[Tensor] = []
        self._upstream: Tensor | None = None

    def watch(self, gradients: HeadGradients) -> None:
        """Take hold of the micro-batch."""
        if len(gradients.labels) != self._layout.num_rows:
            raise UnsupportedLayerError(
                f"the head's loss was given {len(gradients.labels)} rows, but the capture has "
                f"{self._layout.num_rows}: give one row of hidden states and labels for each row of the micro-batch"
            )
        self._gradients = gradients

    def see_chunk(self, rows: slice, grads: Tensor) -> None:
        """Form M of the chunk's units, and G at the ids of the tied embedding."""
        assert self._gradients is not None
        k, num_positions = self.rows_per_unit, grads.shape[1]
        weights = self._gradients.position_weights[rows].reshape(-1, k * num_positions)
        A = self._gradients.hidden[rows].reshape(len(weights), k * num_positions, -1)
        A = (A * weights.unsqueeze(-1)).to(self._gradients.dtype)
        G = grads.reshape(len(weights), k * num_positions, -1)
        if k == 1 and self._rule.trains_weight and not self._rule.trains_bias:
            products, hidden = gram_inner(A, G)
            self._inner_products.append(products.view(-1, 1, 1))
            self._reach.append(hidden.sqrt().view(-1, 1))
        else:
            GG = gram(G)
            AA = gram(A) if self._rule.trains_weight else torch.zeros_like(GG)
            if self._rule.trains_bias:
                AA = AA + weights.unsqueeze(2) * weights.unsqueeze(1)
            reach = lengths(AA) * lengths(GG)
            share = rounding(reach, A, G).sqrt().unsqueeze(1)
            self._reach.append(share * reach.view(-1, k, num_positions).sum(2))
            blocks = (AA * GG).view(len(weights), k, num_positions, k, num_positions)
            self._inner_products.append(blocks.sum(4).sum(2))
        if self._ids is not None:
            ids = self._ids[rows.start // k : rows.stop // k]
            self._grads_at_ids.append(G.gather(2, ids.unsqueeze(1).expand(-1, G.shape[1], -1)))

    def finish(self, upstream: Tensor) -> None:
        """The upstream gradients [rows] are known: form the squared norms [U]."""
        assert self._gradients is not None
        if self._rule.layout is not self._layout:
            return  # the capture was given up
        u = upstream.detach().view(-1, self.rows_per_unit)
        self._upstream = u
        products, reach = torch.cat(self._inner_products), torch.cat(self._reach)
        u = u.to(products.dtype)
        squared_norms = torch.einsum("ur,urs,us->u", u, products, u)
        may_hide = (u.abs() * reach).sum(1).square()
        self._rule.receive(torch.stack([squared_norms, may_hide]), {}, self._gradients.dtype)

    def cross_product(self, D: Tensor) -> Tensor:
        """⟨GᵀA, EᵀD⟩ of each unit, and what rounding may hide [2, U]; D [U, m, d] is of the tied embedding's output."""
        assert self._gradients is not None and self._upstream is not None
        num_units = len(self._upstream)
        weights = self._gradients.position_weights.view(num_units, self.rows_per_unit, -1) * self._upstream.unsqueeze(2)
        A = self._gradients.hidden.reshape(num_units, weights[0].numel(), -1)
        weighted_G = torch.cat(self._grads_at_ids) * weights.reshape(num_units, -1, 1)
        return cross_inner(weighted_G, A.to(D.dtype), D)

    def erase(self, units: Tensor) -> None:
        """Make the ``units`` marked true contribute exactly zero."""
        assert self._gradients is not None and self._upstream is not None
        self._upstream = self._upstream.masked_fill(units.unsqueeze(1), 0.0)
        rows = units.repeat_interleave(self.rows_per_unit)[:, None, None]
        gradients = self._gradients
        gradients.hidden = gradients.hidden.masked_fill(rows, 0.0)
        if gradients.kept is not None:
            gradients.kept.masked_fill_(rows, 0.0)

    def add_clipped(self, factors: Tensor, scale: float) -> None:
        """``grad += scale · Σᵢ factorsᵢ gᵢ``."""
        assert self._gradients is not None and self._upstream is not None
        row_weights = (self._upstream * factors.to(self._upstream.dtype).unsqueeze(1)).flatten()
        if self._gradients.dtype is torch.float16:  # of narrow range: the weights, loss scale included, go around it
            peak = float(row_weights.abs().max()) or 1.0
            row_weights, scale = row_weights / peak, scale * peak
        for G, H, w in self._gradients.products(row_weights):
            if self._rule.trains_weight:
                add_product_to_grad(self._rule.weight, G.t(), H, scale)
            if self._rule.trains_bias and self._rule.bias is not None:
                add_to_grad(self._rule.bias, torch.mv(G.to(w.dtype).t(), w), scale)
