"""The loss of an output head: from hidden states to losses of rows, in one buffer for logits and their gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from doppel.models.frozen_layers import FrozenLinear
from doppel.privacy.clipping.arithmetic import wide_dtype

IGNORE_INDEX = -100
#: Logits of a part that is formed together: 28 MiB of float32 on the CPU, see :mod:`doppel.allocator`, else 256 MiB.
LOGITS_CPU, LOGITS = 7 * 2**20, 2**26


@dataclass(frozen=True)
class ScaledLogits:
    """Logits times a public constant, and bounded where there is a soft cap c: c·tanh(scale·z / c), number by number.

    Attributes:
        scale: Of the logits (Granite, Cohere).
        cap: Soft cap c (Gemma 2; Bello et al., 2016); None: there is none.
    """

    scale: float = 1.0
    cap: float | None = None

    def __call__(self, logits: Tensor) -> Tensor:
        """Return as many numbers, each of which is a function of its own logit."""
        scaled = logits if self.scale == 1.0 else logits * self.scale
        return scaled if self.cap is None else torch.tanh(scaled / self.cap) * self.cap


class HeadLoss:
    """Negative log-likelihood of each row's labelled positions, from hidden states, divided by a constant.

    Only labelled positions reach the head, and the gradient takes the place of the logits: ordinary training holds the
    B·T·V logits, their logarithms and their gradient side by side. The head is called as any layer is, so a
    :class:`~doppel.privacy.clipping.PerSampleClipper` clips it by its ordinary rule; nothing here knows of privacy.

    Formal guarantees:
        A row's loss and gradient are formed from that row alone. The row with most labels decides how many positions
        stand side by side; in others they are filled up by positions of their own without label, whose weight and so
        whose gradient is exactly zero. They add nothing to a norm, nor to its room for rounding. A row that overflows
        has a gradient that is not finite, and contributes zero.

        *A function f of the logits* changes none of this. It is public, elementwise and has no weights, so a row's loss
        CE(f(z)) stays a function of this row alone. What reaches the head is the gradient of its own outputs z, which
        is ∂CE/∂f(z) · f'(z), number by number: f is no layer, and the head stays the linear layer z = Wh + b, whose
        gradient is GᵀA for these G. The head's rule, its cross term with a tied embedding and its room for rounding
        are statements on A and G, whatever they came from, so the norm is exact, and the sum is clipped by it. Nothing
        has to bound f': clipping bounds whatever comes of it. A function that mixes logits or positions would let one
        row into another's loss, and one with weights would have them trained unclipped: both are refused.

    Args:
        head: The output head, an ``nn.Linear`` with or without bias; its weight may be tied to the embedding.
        divisor: Divides the sum over a row's positions: a public constant, so that the loss is a likelihood of whole
            rows. None divides by the row's own number of labelled positions.
        function: What the model does with its logits, such as :class:`ScaledLogits`: a public elementwise function.
            None: nothing.

    Raises:
        TypeError: The head is no ``nn.Linear``, or the function a module.
        ValueError: The function is not elementwise.
    """

    def __init__(
        self, head: nn.Linear, divisor: float | None = None, function: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        if type(head) not in (nn.Linear, FrozenLinear):  # another layer may need the logits again
            raise TypeError(
                f"the head is a {type(head).__name__}, but the loss overwrites logits of an nn.Linear alone"
            )
        if isinstance(function, nn.Module):
            raise TypeError(f"the function of the logits is a {type(function).__name__}, whose weights nothing clips")
        if function is not None and not _is_elementwise(function):
            raise ValueError("the function of the logits is not elementwise, so a row's loss might depend on others")
        self.head = head
        self.divisor = divisor
        self.function = function

    def __call__(self, hidden_BTD: Tensor, labels_BT: Tensor, num_labels: int | None = None) -> Tensor:
        """Losses of shape [B], in nats.

        Args:
            hidden_BTD: What the head is applied to.
            labels_BT: For each position the *next* token, or -100 where there is no loss. A row without labels has
                loss 0.
            num_labels: Labels that no row has more of, so that a GPU need not be waited for; None: they are counted.
        """
        hidden_BND, labels_BN = _labelled(hidden_BTD, labels_BT, num_labels)
        logits_BNV = self.head(hidden_BND)
        is_labelled_BN = labels_BN != IGNORE_INDEX
        divisor = is_labelled_BN.sum(1, keepdim=True).clamp(min=1) if self.divisor is None else self.divisor
        weights_BN = is_labelled_BN.to(wide_dtype(logits_BNV.dtype)) / divisor
        losses: Tensor = _CrossEntropy.apply(logits_BNV, labels_BN, weights_BN, self.function)
        return losses


class _CrossEntropy(torch.autograd.Function):
    """Weighted sum of each row's cross-entropies; the backward pass writes w·(P − onehot)·f' over the logits."""

    @staticmethod
    def forward(
        ctx: Any,
        logits_BNV: Tensor,
        labels_BN: Tensor,
        weights_BN: Tensor,
        function: Callable[[Tensor], Tensor] | None,
    ) -> Tensor:
        ctx.save_for_backward(logits_BNV, labels_BN, weights_BN)
        ctx.function = function or _itself
        nll_N = [
            F.cross_entropy(
                ctx.function(logits_NV.to(weights_BN.dtype)), labels_N, ignore_index=IGNORE_INDEX, reduction="none"
            )
            for logits_NV, labels_N, _ in _parts(logits_BNV, labels_BN, weights_BN)
        ]
        return (torch.cat(nll_N).view_as(weights_BN) * weights_BN).sum(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream_B: Tensor) -> tuple[Tensor, None, None, None]:
        logits_BNV, labels_BN, weights_BN = ctx.saved_tensors  # autograd refuses a second time: they were overwritten
        for logits_NV, labels_N, weights_N in _parts(logits_BNV, labels_BN, weights_BN * upstream_B[:, None]):
            raw_NV = logits_NV.to(weights_N.dtype)
            with torch.enable_grad():
                raw_NV = raw_NV if ctx.function is _itself else raw_NV.detach().requires_grad_()
                shown_NV = ctx.function(raw_NV)
            grads_NV = torch.softmax(shown_NV.detach(), 1)
            target_N1 = labels_N[:, None].clamp(min=0)
            grads_NV.scatter_add_(1, target_N1, grads_NV.new_full((1, 1), -1.0).expand_as(target_N1))
            grads_NV.mul_(weights_N[:, None])
            if raw_NV.requires_grad:
                (grads_NV,) = torch.autograd.grad(shown_NV, raw_NV, grads_NV)
            logits_NV.copy_(grads_NV)
        return logits_BNV.detach(), None, None, None


def _itself(logits: Tensor) -> Tensor:
    return logits


def _is_elementwise(function: Callable[[Tensor], Tensor]) -> bool:
    """Whether each of some made-up logits becomes what it becomes alone."""
    logits = torch.linspace(-50, 50, 12, dtype=torch.float64).view(3, 4)
    alone = torch.stack([function(logit.view(1, 1)) for logit in logits.flatten()]).view(3, 4)
    return torch.allclose(function(logits), alone, rtol=1e-9, atol=1e-12)


def _parts(logits_BNV: Tensor, *of_positions_BN: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Positions [n] side by side, of few enough logits [n, V] to be held twice."""
    size = max((LOGITS if logits_BNV.is_cuda else LOGITS_CPU) // logits_BNV.shape[-1], 1)
    flat = (logits_BNV.detach().flatten(0, 1), *(x.flatten() for x in of_positions_BN))
    return zip(*(x.split(size) for x in flat), strict=True)


def _labelled(hidden_BTD: Tensor, labels_BT: Tensor, num_labels: int | None) -> tuple[Tensor, Tensor]:
    """The labelled positions of every row, side by side: [B, N, D] and [B, N] for the most labels N of a row."""
    is_labelled_BT = labels_BT != IGNORE_INDEX
    num_positions = max(int(is_labelled_BT.sum(1).max()) if num_labels is None else num_labels, 1)
    if num_positions >= labels_BT.shape[1]:
        return hidden_BTD, labels_BT
    order_BN = (~is_labelled_BT).byte().argsort(dim=1, stable=True)[:, :num_positions]
    index_BND = order_BN.unsqueeze(-1).expand(-1, -1, hidden_BTD.shape[-1])
    return hidden_BTD.gather(1, index_BND), labels_BT.gather(1, order_BN)
