"""The place in the autograd graph where a layer's output gradient is seen."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from doppel.privacy.clipping.rule import LayerRule


class ObserveGradient(torch.autograd.Function):
    """Identity, whose backward shows the gradient to a layer's rule.

    A tensor hook would do the same until the output is a view that is changed in place (a Linear followed by
    an in-place ReLU): autograd then rebuilds the graph, the hook is never called, and the layer would be
    missing from the norm. After a function of our own, autograd refuses the change in place.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, rule: LayerRule) -> Tensor:
        ctx.rule = rule
        return output.view_as(output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor, None]:
        ctx.rule.observe(grads)
        return grads, None
