"""What a layer rule is: how one module's per-unit gradient norm and clipped gradient are formed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from doppel.errors import UserError

if TYPE_CHECKING:
    from doppel.privacy.clipping.capture import Capture


class UnsupportedLayerError(UserError):
    """A trainable parameter whose per-sample gradient norm the engine cannot give exactly.

    The message is one line: the parameter or module, why it is refused, and what to do. It is always raised;
    a parameter is never left out of the norm in silence.
    """


class LayerRule:
    """The rule of one module. There are two kinds: what stands in the place of the module's ``forward`` while a capture
    lasts (:class:`.observed.ObservedRule`), and what looks at its inputs and outputs (:class:`HookedRule`).

    Args:
        name: The module's name in the model, for messages.
        module: The module. Each of its parameters may be trainable or frozen.
    """

    module_type: ClassVar[type[nn.Module]] = nn.Module
    parameter_names: ClassVar[tuple[str, ...]] = ("weight", "bias")
    min_dims: ClassVar[int] = 2  # of an output: a vector may run over rows or over features

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name = name
        self.module = module
        self.weight: nn.Parameter = module.weight  # type: ignore[assignment]
        self.bias: nn.Parameter | None = getattr(module, "bias", None)
        self.trains_weight = self.weight is not None and self.weight.requires_grad
        self.trains_bias = self.bias is not None and self.bias.requires_grad

    @property
    def trained_parameters(self) -> list[nn.Parameter]:
        """The module's own parameters that are trained."""
        both = ((self.weight, self.trains_weight), (self.bias, self.trains_bias))
        return [p for p, trains in both if trains and p is not None]

    @classmethod
    def matches(cls, module: nn.Module) -> bool:
        """Return whether this rule is exact for ``module``. A subclass of a known type may compute something else."""
        return type(module) is cls.module_type

    def check_rows(self, output: Tensor, num_rows: int) -> None:
        """Refuse an output whose first dimension is not the rows of the micro-batch."""
        if output.dim() < self.min_dims or output.shape[0] != num_rows:
            raise UnsupportedLayerError(
                f"module '{self.name}' ({type(self.module).__name__}) gave an output of shape "
                f"{tuple(output.shape)}, but its first dimension must be the {num_rows} rows of the micro-batch"
                ": keep the batch dimension first (batch_first=True), or freeze the module"
            )


class ObserveGradient(torch.autograd.Function):
    """Identity on a layer's outputs, whose backward shows the layer's inputs and output gradients to its rule.

    A tensor hook would do the same until the output is a view that is changed in place: autograd then rebuilds the
    graph, the hook is never called, and the layer would be missing from the norm. After a function of our own, autograd
    refuses the change in place. The inputs are *saved for backward*, so autograd also refuses to go on if one was
    changed in place, and a checkpoint may drop it and compute it again.
    """

    @staticmethod
    def forward(
        ctx: Any, rule: HookedRule, capture: Capture, start: Tensor, num_outputs: int, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.rule, ctx.capture, ctx.num_inputs = rule, capture, len(tensors) - num_outputs
        ctx.save_for_backward(*tensors[num_outputs:])
        return tuple(output.view_as(output) for output in tensors[:num_outputs])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.capture.is_open:
            ctx.capture.note_gradient(ctx.rule)
            with torch.autocast(grads[0].device.type, enabled=False):
                ctx.rule.observe(ctx.capture, ctx.saved_tensors, grads)
        return (None, None, None, None, *grads, *[None] * ctx.num_inputs)


class HookedRule(LayerRule, ABC):
    """A rule of a module that runs as it is; a hook shows its inputs and outputs.

    In order: :meth:`watch` in the forward pass, :meth:`observe` in the backward pass, :meth:`finish`, and (norms known)
    :meth:`add_clipped` and :meth:`reset`.

    Attributes:
        kept: What :meth:`add_clipped` needs, by name; the first dimension of every tensor is the units.
    """

    kept: dict[str, Tensor]

    def reset(self) -> None:
        """Forget the micro-batch and free its buffers."""
        self.kept = {}

    def watch(
        self, capture: Capture, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any, is_again: bool
    ) -> Any:
        """Return the output that the model goes on with, whose gradient is observed.

        A checkpoint runs a call ``is_again``, for its inputs alone.
        """
        output = self.expand_output(output, capture.num_rows)
        inputs = args[0] if args else next(iter(kwargs.values()))
        return self.observed(capture, [output], [inputs])[0]

    def observed(self, capture: Capture, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return outputs whose gradients are observed; parameters are out of autograd, so they may be its leaves."""
        inputs = [x.detach() if x.requires_grad else x for x in inputs]
        seen: tuple[Tensor, ...] = ObserveGradient.apply(self, capture, capture.start, len(outputs), *outputs, *inputs)
        return seen

    def expand_output(self, output: Tensor, num_rows: int) -> Tensor:
        """Return the output with a row for each row of the micro-batch."""
        self.check_rows(output, num_rows)
        return output

    @abstractmethod
    def observe(self, capture: Capture, inputs: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        """Take the module's inputs and the gradients of its outputs, all [rows, …]."""

    @abstractmethod
    def finish(self, capture: Capture) -> tuple[Tensor, Tensor] | None:
        """Return the squared norms of the units' gradients, and what rounding may hide, [U]; None: not observed."""

    @abstractmethod
    def erase(self, units: Tensor) -> None:
        """Make the ``units`` marked true contribute exactly zero, even where they hold inf or nan."""

    @abstractmethod
    def add_clipped(self, factors: Tensor, scale: float) -> None:
        """Add ``scale · Σᵢ factorsᵢ gᵢ`` to the ``grad`` of each trainable parameter of the module."""
