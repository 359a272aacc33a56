"""The place in the autograd graph where a layer's output gradient is seen."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from doppel.privacy.clipping.rule import LayerRule


class ObserveGradient(torch.autograd.Function):
    """Identity, whose backward shows the layer's input and output gradient to its rule.

    A tensor hook would do the same until the output is a view that is changed in place (a Linear followed by an
    in-place ReLU): autograd then rebuilds the graph, the hook is never called, and the layer would be missing from the
    norm. After a function of our own, autograd refuses the change in place. The input is *saved for backward*, so
    autograd also refuses to go on if it was changed in place, and a checkpoint may drop it and compute it again.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, rule: LayerRule, *inputs: Tensor) -> Tensor:
        ctx.rule = rule
        ctx.save_for_backward(*inputs)
        return output.view_as(output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor | None, ...]:
        inputs, *others = ctx.saved_tensors
        with torch.autocast(grads.device.type, enabled=False):
            ctx.rule.observe(inputs, grads.detach(), *others)
        return grads, None, *[None] * (1 + len(others))
