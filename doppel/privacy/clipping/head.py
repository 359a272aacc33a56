"""The output head fused with its cross-entropy: losses of rows without ever holding all logits, and their clipping."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from doppel.half_weights import weight_in
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

IGNORE_INDEX = -100
#: float16 holds weighted hidden states in units of this part of the clipping norm, and has numbers up to this peak.
_UNIT, _PEAK = 2.0**-4, 2.0**15
#: Positions of a chunk; logits of a chunk on the CPU: 28 MiB of float32, see :mod:`doppel.allocator`.
_CHUNK, _LOGITS_CPU = 512, 7 * 2**20
#: Attribute of a head in a capture: starts the :class:`FusedHead` of the micro-batch.
START_FUSED_HEAD = "start_fused_head"


class HeadLoss:
    """Negative log-likelihood of each row's labelled positions, from hidden states, divided by a constant.

    Only labelled positions reach the head. Their logits are formed chunk by chunk, and the gradient with respect to
    them is formed at once, in place of the logits: the B·T·V logits, their logarithms and their gradient, which
    ordinary training holds side by side, are never all there. Ordinary and private training use the same function: in a
    capture of a :class:`~doppel.privacy.clipping.PerSampleClipper` the head has an attribute that starts a
    :class:`FusedHead`, which is shown the chunks and clips what the head would have had as its gradient.

    ============  ==========================================  =========================
    ``recompute``  held until the weight gradient is formed    GEMM work of the head
    ============  ==========================================  =========================
    false         one [labelled positions, V] buffer          3 (as ordinary training)
    true          one [chunk, V] buffer                       4
    ============  ==========================================  =========================

    Args:
        head: The output head, an ``nn.Linear`` with or without bias; its weight may be tied to the embedding.
        chunk_tokens: Positions whose logits are formed together, at least one row (or unit). None: 512, or on the CPU
            those whose logits in float32 still fit its caches and come from memory that is kept, at most 512.
        recompute: Form the logits' gradient a second time instead of keeping it.
        divisor: Divides the sum over a row's positions: a public constant, so that the loss is a likelihood of whole
            rows. None divides by the row's own number of labelled positions.
    """

    def __init__(
        self, head: nn.Linear, chunk_tokens: int | None = None, recompute: bool = False, divisor: float | None = None
    ) -> None:
        if type(head) is not nn.Linear:
            raise TypeError(f"the head is a {type(head).__name__}, but only an nn.Linear can be fused with its loss")
        self.head = head
        self.chunk_tokens = chunk_tokens
        self.recompute = recompute
        self.divisor = divisor
        self.buffer = _Buffer()

    def tokens_of_chunk(self, device: torch.device) -> int:
        """Positions whose logits are formed together there."""
        if self.chunk_tokens is not None or device.type != "cpu":
            return self.chunk_tokens or _CHUNK
        return min(_CHUNK, max(_LOGITS_CPU // len(self.head.weight), 1))

    def __call__(self, hidden_BTD: Tensor, labels_BT: Tensor) -> Tensor:
        """Losses of shape [B], in nats.

        Args:
            hidden_BTD: What the head is applied to.
            labels_BT: For each position the *next* token, or -100 where there is no loss. A row without labels has
                loss 0.
        """
        hidden_BND, labels_BN = _labelled(hidden_BTD, labels_BT)
        has_graph = torch.is_grad_enabled()
        start: Callable[[], FusedHead] | None = getattr(self.head, START_FUSED_HEAD, None)
        fused = start() if start is not None and has_graph else None
        weight, bias = self.head.weight, self.head.bias
        if fused is not None:  # the parameters are out of autograd: their gradients are the clipper's business
            weight, bias = weight.detach(), None if bias is None else bias.detach()
            if not hidden_BND.requires_grad:  # the head alone is trained: there must be a graph to come back by
                hidden_BND = hidden_BND.detach().requires_grad_(True)
        return _HeadLossFunction.apply(hidden_BND, weight, bias, labels_BN, self, fused, has_graph)


class _HeadLossFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        loss: HeadLoss,
        fused: FusedHead | None,
        has_graph: bool,
    ) -> Tensor:
        device = hidden.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        wide = torch.float64 if hidden.dtype is torch.float64 else torch.float32
        needs_weight = has_graph and (fused is not None or any(ctx.needs_input_grad[1:3]))
        needs_hidden = has_graph and ctx.needs_input_grad[0]
        multiple = 1 if fused is None else fused.rows_per_unit
        with torch.autocast(device, enabled=False):
            is_labelled = labels != IGNORE_INDEX
            divisor = is_labelled.sum(1, keepdim=True).clamp(min=1).to(wide) if loss.divisor is None else loss.divisor
            gradients = HeadGradients(
                hidden=hidden.detach().to(dtype),
                labels=labels,
                position_weights=is_labelled.to(wide) / divisor,
                weight=weight_in(loss.head, dtype),
                bias=None if bias is None else bias.detach().to(dtype),
                rows_per_chunk=max(loss.tokens_of_chunk(hidden.device) // (labels.shape[1] * multiple), 1) * multiple,
                # the clipper forms float32 sums; the CPU has no GEMM from half precision into float32
                dtype=dtype if fused is None or hidden.is_cuda else wide,
            )
            if needs_weight and not loss.recompute:
                gradients.kept = loss.buffer.lend(gradients, hidden.device)
            losses = hidden.new_empty(len(labels), dtype=wide)
            hidden_grads = torch.empty_like(hidden, dtype=wide) if needs_hidden else None
            if fused is not None:
                fused.watch(gradients)
            for rows in gradients.chunks():
                nll, grads = gradients.form(rows)
                weights = gradients.position_weights[rows]
                losses[rows] = (nll * weights).sum(1)
                if hidden_grads is not None:
                    product = (grads.flatten(0, 1).to(dtype) @ gradients.weight).view(hidden[rows].shape)
                    torch.mul(product, weights.unsqueeze(-1), out=hidden_grads[rows])
                if fused is not None:
                    fused.see_chunk(rows, grads)
            del grads
            gradients.scratch = None
        ctx.save_for_backward(hidden_grads)
        ctx.gradients = gradients if needs_weight else None
        ctx.fused, ctx.dtypes = fused, (hidden.dtype, weight.dtype)
        ctx.is_done = False
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        (hidden_grads,) = ctx.saved_tensors
        if ctx.is_done:  # retain_graph=True
            raise RuntimeError("backward went through a HeadLoss twice, whose buffers are freed the first time")
        ctx.is_done = True
        gradients, ctx.gradients = ctx.gradients, None
        hidden_dtype, weight_dtype = ctx.dtypes
        weight_grad = bias_grad = None
        with torch.autocast(upstream.device.type, enabled=False):
            if hidden_grads is not None:
                hidden_grads = (hidden_grads * upstream[:, None, None]).to(hidden_dtype)
            fused, ctx.fused = ctx.fused, None  # the loss may outlive the backward pass, the buffers may not
            if fused is not None:
                fused.finish(upstream)
            elif gradients is not None:
                for G, H, w in gradients.products(upstream):
                    product = (G.t() @ H).to(weight_dtype)
                    weight_grad = product if weight_grad is None else weight_grad.add_(product)
                    if gradients.bias is not None:
                        product = (G.t() @ w.to(G.dtype)).to(weight_dtype)
                        bias_grad = product if bias_grad is None else bias_grad.add_(product)
        return hidden_grads, weight_grad, bias_grad, None, None, None, None


@dataclass
class HeadGradients:
    """The gradients of a micro-batch's losses with respect to the logits, kept or formed again.

    A position's gradient is w·(P − onehot), with the softmax P and the weight w = 1/divisor, 0 without label. P −
    onehot is what is held; the weights are put on the hidden states, which are narrower.

    Attributes:
        hidden: [B, N, D], in the dtype of the forward GEMMs.
        labels: [B, N].
        position_weights: w [B, N], in the wide dtype.
        weight: The head's weight [V, D], in the dtype of the forward GEMMs.
        bias: The head's bias [V], or None.
        rows_per_chunk: Rows of a chunk.
        dtype: The dtype of P − onehot.
        kept: P − onehot [B, N, V], unless it is formed again.
        scratch: Holds P − onehot of one chunk, in the wide dtype, where it is not formed in its place in ``kept``.
    """

    hidden: Tensor
    labels: Tensor
    position_weights: Tensor
    weight: Tensor
    bias: Tensor | None
    rows_per_chunk: int
    dtype: torch.dtype
    kept: Tensor | None = None
    scratch: Tensor | None = None

    def chunks(self) -> Iterator[slice]:
        """Rows of each chunk."""
        for start in range(0, len(self.labels), self.rows_per_chunk):
            yield slice(start, min(start + self.rows_per_chunk, len(self.labels)))

    def _place(self, rows: slice, logits_NV: Tensor, is_in_place: bool) -> Tensor:
        if is_in_place and self.kept is not None:
            return self.kept[rows].view(logits_NV.shape)
        if self.scratch is None or len(self.scratch) < len(logits_NV):
            self.scratch = torch.empty_like(logits_NV)
        return self.scratch[: len(logits_NV)]

    def form(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Token losses [r, N], 0 without label, and P − onehot [r, N, V] (anything where the weight is 0).

        The next chunk may take the place of this one's P − onehot.
        """
        hidden_ND, labels_N1 = self.hidden[rows].flatten(0, 1), self.labels[rows].reshape(-1, 1)
        logits_NV = hidden_ND @ self.weight.t()
        if self.bias is not None:
            logits_NV += self.bias
        logits_NV = logits_NV.to(self.position_weights.dtype)
        target_N1 = labels_N1.clamp(min=0)
        largest_N1, target_logit_N1 = logits_NV.amax(1, keepdim=True), logits_NV.gather(1, target_N1)
        is_in_place = self.kept is not None and self.kept.dtype is logits_NV.dtype
        grads_NV = torch.softmax(logits_NV, 1, out=self._place(rows, logits_NV, is_in_place))
        del logits_NV
        # log Σ exp(logits) by way of the largest probability, which never underflows
        nll_N1 = largest_N1 - grads_NV.amax(1, keepdim=True).log() - target_logit_N1
        grads_NV.scatter_add_(1, target_N1, grads_NV.new_full((1, 1), -1.0).expand_as(target_N1))
        grads_BNV = grads_NV.to(self.dtype).view(*self.labels[rows].shape, -1)
        if self.kept is not None and not is_in_place:
            self.kept[rows] = grads_BNV
        nll_BN = nll_N1.view(self.labels[rows].shape).masked_fill(self.labels[rows] == IGNORE_INDEX, 0.0)
        return nll_BN, grads_BNV

    def weighted_hidden(self, rows: slice, weights_BN: Tensor) -> Tensor:
        """Hidden states times a weight for each position, rounded once."""
        return (self.hidden[rows] * weights_BN.unsqueeze(-1)).to(self.dtype)

    def products(self, row_weights: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """G [n, V], H [n, D] and w [n], chunk by chunk; Σ GᵀH and Σ Gᵀw are the gradients of weight and bias.

        Args:
            row_weights: Weight of each row's gradient [B].
        """
        for rows in [slice(0, len(self.labels))] if self.kept is not None else self.chunks():
            grads = self.kept[rows] if self.kept is not None else self.form(rows)[1]
            weights_BN = self.position_weights[rows] * row_weights[rows, None]
            yield grads.flatten(0, 1), self.weighted_hidden(rows, weights_BN).flatten(0, 1), weights_BN.flatten()


class FusedHead:
    """Takes the place of the head's output gradients, which are never all held, in the head's rule.

    With position-weighted hidden states A and G = P − onehot at a unit's positions, and upstream gradients u of the
    losses of its k rows, the unit's weight gradient is Σᵣ uᵣ GᵣᵀAᵣ. Its squared norm is uᵀMu for the k × k matrix
    M_rs = ⟨AᵣAₛᵀ, GᵣGₛᵀ⟩, which is formed chunk by chunk in the forward pass, before u is known. Rounding may hide a
    share of (Σᵣ |uᵣ| Rᵣ)², where Rᵣ is what the row's positions can reach (see :func:`.arithmetic.rounding`).

    *float16.* G is at most 1, and A takes the row's weight (upstream gradient and clip factor, without the loss scale)
    in units of 2⁻⁴ of the clipping norm C, a public number: a unit is rounded in the same way whoever is beside it. The
    norm leaves room for 2⁻¹¹ of the largest |uᵣAᵣ|, so that no weight takes A beyond 2¹⁵, however small G is. A number
    below 2⁻¹⁴ is off by 2⁻²⁵ at most, which is 2⁻²⁹C of an entry of a position's gradient.

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
        if A.dtype is torch.float16 and self._rule.trains_weight:
            peaks = torch.linalg.vector_norm(A.view(len(A), k, -1), math.inf, dim=2, dtype=self._reach[-1].dtype)
            self._reach[-1] = torch.maximum(self._reach[-1], peaks / (_UNIT * _PEAK))
        if self._ids is not None:
            ids = self._ids[rows.start // k : rows.stop // k]
            self._grads_at_ids.append(G.gather(2, ids.unsqueeze(1).expand(-1, G.shape[1], -1)))

    def finish(self, upstream: Tensor) -> None:
        """The upstream gradients [rows] are known: form the squared norms [U]."""
        assert self._gradients is not None
        u = upstream.detach().view(-1, self.rows_per_unit)
        self._upstream = u
        products, reach = torch.cat(self._inner_products), torch.cat(self._reach)
        u = u.to(products.dtype)
        squared_norms = torch.einsum("ur,urs,us->u", u, products, u)
        may_hide = (u.abs() * reach).sum(1).square()
        self._rule.receive(self._layout, torch.stack([squared_norms, may_hide]), {}, self._gradients.dtype)

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
        if self._gradients.dtype is torch.float16:
            unit = self._rule.bound * _UNIT
            row_weights, scale = row_weights * (scale / unit), unit
        for G, H, w in self._gradients.products(row_weights):
            if self._rule.trains_weight:
                add_product_to_grad(self._rule.weight, G.t(), H, scale)
            if self._rule.trains_bias and self._rule.bias is not None:
                add_to_grad(self._rule.bias, torch.mv(G.to(w.dtype).t(), w), scale)


def _labelled(hidden_BTD: Tensor, labels_BT: Tensor) -> tuple[Tensor, Tensor]:
    """The labelled positions of every row, side by side: [B, N, D] and [B, N] for the most labels N of a row."""
    is_labelled_BT = labels_BT != IGNORE_INDEX
    num_positions = max(int(is_labelled_BT.sum(1).max()), 1)
    if num_positions == labels_BT.shape[1]:
        return hidden_BTD, labels_BT
    order_BN = (~is_labelled_BT).byte().argsort(dim=1, stable=True)[:, :num_positions]
    index_BND = order_BN.unsqueeze(-1).expand(-1, -1, hidden_BTD.shape[-1])
    return hidden_BTD.gather(1, index_BND), labels_BT.gather(1, order_BN)


class _Buffer:
    """Memory for P − onehot on the CPU, which hands out new pages for every large tensor; CUDA keeps its own."""

    def __init__(self) -> None:
        self._memory = torch.empty(0)
        self._user: weakref.ref[HeadGradients] | None = None

    def __reduce__(self) -> tuple[type[_Buffer], tuple[()]]:
        return _Buffer, ()  # a copy, in this process or another, has memory of its own

    def lend(self, user: HeadGradients, device: torch.device) -> Tensor:
        """[B, N, V], whatever it holds; lent again when ``user`` is gone."""
        shape = (*user.labels.shape, len(user.weight))
        if device.type != "cpu" or (self._user is not None and self._user() is not None):
            return torch.empty(shape, dtype=user.dtype, device=device)
        if self._memory.numel() < math.prod(shape) or self._memory.dtype is not user.dtype:
            self._memory = torch.empty(math.prod(shape), dtype=user.dtype)
        self._user = weakref.ref(user)
        return self._memory[: math.prod(shape)].view(shape)
