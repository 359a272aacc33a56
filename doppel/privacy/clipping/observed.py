"""Layers with a formula as one node of the graph each, whose backward pass shows the output's gradient to the rule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from doppel.privacy.clipping.rule import Capture, LayerRule, UnsupportedLayerError


class ObservedLayer(torch.autograd.Function):
    """A layer's output, and in the backward pass its input's gradient, by the formulas of its rule.

    What the rule needs again is *saved for backward*: autograd refuses to go on if an input was changed in place, and a
    checkpoint may drop it and compute it again. The output is nobody's view, so what is done to it in place is an
    operation after this one, and the gradient that arrives is still that of the layer's own output.
    """

    @staticmethod
    def forward(ctx: Any, rule: ObservedRule, capture: Capture, x: Tensor, start: Tensor | None) -> Tensor:
        ctx.rule, ctx.capture = rule, capture
        return rule.compute(ctx, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grads: Tensor) -> tuple[None, None, Tensor | None, None]:
        capture = ctx.capture if ctx.capture.is_open else None
        if capture is not None:
            capture.note_gradient(ctx.rule)
        with torch._C._DisableAutocast():
            return None, None, ctx.rule.pull(ctx, capture, grads, ctx.needs_input_grad[2]), None


class ObservedRule(LayerRule, ABC):
    """A rule that stands in the place of its module's ``forward`` while a capture lasts."""

    @property
    def plain_forward(self) -> Any:
        """The module's own."""
        return type(self.module).forward.__get__(self.module)

    def call(self, capture: Capture, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Return the output of the module, as an :class:`ObservedLayer`."""
        if len(args) + len(kwargs) != 1:
            raise UnsupportedLayerError(
                f"module '{self.name}' ({type(self.module).__name__}) was called with more than its input, which its "
                "rule does not know: give it its input alone, or freeze it"
            )
        x = args[0] if args else next(iter(kwargs.values()))
        output: Tensor = ObservedLayer.apply(self, capture, x, None if x.requires_grad else capture.start)
        self.check_rows(output, capture.num_rows)
        return output

    @abstractmethod
    def compute(self, ctx: Any, x: Tensor) -> Tensor:
        """Return the module's output; save for backward what :meth:`pull` needs."""

    @abstractmethod
    def pull(self, ctx: Any, capture: Capture | None, grads: Tensor, needs_input: bool) -> Tensor | None:
        """Give the capture the units' gradients for ``grads`` of the output; return that of the input if needed.

        Where the capture was given up, there is none.
        """
