"""What a layer rule is: how one module's per-unit gradient norm and clipped gradient are formed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from doppel.errors import UserError
from doppel.privacy.clipping.arithmetic import add_to_grad, erase_units, product_dtype


class UnsupportedLayerError(UserError):
    """A trainable parameter whose per-sample gradient norm the engine cannot give exactly.

    The message is one line: the parameter or module, why it is refused, and what to do. It is always raised;
    a parameter is never left out of the norm in silence.
    """


@dataclass(frozen=True)
class UnitLayout:
    """How the rows of a micro-batch belong to units: unit 0's rows, then unit 1's, … One object for each capture.

    Args:
        num_units: Number of units U in the micro-batch.
        rows_per_unit: Rows of every unit; they are clipped together.
    """

    num_units: int
    rows_per_unit: int

    @property
    def num_rows(self) -> int:
        """Rows of the micro-batch."""
        return self.num_units * self.rows_per_unit

    def split(self, x: Tensor, num_features: int) -> Tensor:
        """Return [rows, …, f] → [U, n, f], all positions of all rows of a unit side by side."""
        return x.reshape(self.num_units, -1, num_features)


class ObserveGradient(torch.autograd.Function):
    """Identity on a layer's outputs, whose backward shows the layer's inputs and output gradients to its rule.

    A tensor hook would do the same until the output is a view that is changed in place (a Linear followed by an
    in-place ReLU): autograd then rebuilds the graph, the hook is never called, and the layer would be missing from the
    norm. After a function of our own, autograd refuses the change in place. The inputs are *saved for backward*, so
    autograd also refuses to go on if one was changed in place, and a checkpoint may drop it and compute it again.
    """

    @staticmethod
    def forward(
        ctx: Any, rule: LayerRule, layout: UnitLayout, num_outputs: int, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.rule, ctx.layout, ctx.num_inputs = rule, layout, len(tensors) - num_outputs
        ctx.save_for_backward(*tensors[num_outputs:])
        return tuple(output.view_as(output) for output in tensors[:num_outputs])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        with torch.autocast(grads[0].device.type, enabled=False):
            ctx.rule.observe(ctx.saved_tensors, [grad.detach() for grad in grads], ctx.layout)
        return (None, None, None, *grads, *[None] * ctx.num_inputs)


class LayerRule(ABC):
    """The rule of one module, with what it holds between the backward pass and the clipped sum.

    A rule is used once per micro-batch, in this order: :meth:`watch` in the forward pass, :meth:`observe` in the
    backward pass, then :meth:`finish` and (norms known) :meth:`add_clipped` and :meth:`reset`. The mathematics of a
    layer with a formula is in :meth:`summarise`.

    Args:
        name: The module's name in the model, for messages.
        module: The module. Each of its parameters may be trainable or frozen.

    Attributes:
        squared_norms: Squared norms of the units' gradients, once observed, and what rounding may hide of them, [2, U].
        kept: What :meth:`add_clipped` needs, by name; the first dimension of every tensor is the units.
        bound: The clipping norm, rounded up to a power of two (1 if it is infinite): float16 holds what is clipped in
            parts of it.
    """

    module_type: ClassVar[type[nn.Module]] = nn.Module
    parameter_names: ClassVar[tuple[str, ...]] = ("weight", "bias")
    min_dims: ClassVar[int] = 2  # of an output: a vector may run over rows or over features
    bound = 1.0

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name = name
        self.module = module
        self.weight: nn.Parameter = module.weight  # type: ignore[assignment]
        self.bias: nn.Parameter | None = getattr(module, "bias", None)
        self.trains_weight = self.weight is not None and self.weight.requires_grad
        self.trains_bias = self.bias is not None and self.bias.requires_grad
        self.reset()

    @property
    def trained_parameters(self) -> list[nn.Parameter]:
        """The module's own parameters that are trained."""
        both = ((self.weight, self.trains_weight), (self.bias, self.trains_bias))
        return [p for p, trains in both if trains and p is not None]

    @classmethod
    def matches(cls, module: nn.Module) -> bool:
        """Return whether this rule is exact for ``module``. A subclass of a known type may compute something else."""
        return type(module) is cls.module_type

    def reset(self) -> None:
        """Forget the micro-batch and free its buffers."""
        self.squared_norms: Tensor | None = None
        self.kept: dict[str, Tensor] = {}
        self.layout = UnitLayout(1, 1)
        self.operand_dtype: torch.dtype = torch.float32
        self.is_recorded = False
        self.ran_without_grad = False

    # -------------------------------------------------------------------------------- forward
    def watch(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any, layout: UnitLayout, is_again: bool
    ) -> Any:
        """Return the output that the model goes on with, whose gradient is observed.

        A checkpoint runs a call ``is_again``, for its inputs alone.
        """
        output = self.prepare_output(output, layout)
        if not is_again:
            self.start(layout)
        inputs = args[0] if args else next(iter(kwargs.values()))
        return ObserveGradient.apply(self, layout, 1, output, inputs.detach())[0]

    def start(self, layout: UnitLayout) -> None:
        """Begin a micro-batch in which the module takes part.

        Raises:
            UnsupportedLayerError: It does so already. Two calls have one gradient, whose norm is not that of either.
        """
        if self.is_recorded:
            raise UnsupportedLayerError(
                f"module '{self.name}' ({type(self.module).__name__}) was called twice in one capture, and a layer's "
                "rule gives the gradient of one call: run one forward and one backward per capture, use a module of "
                "its own for each call, or freeze it"
            )
        self.is_recorded, self.layout = True, layout

    def prepare_output(self, output: Tensor, layout: UnitLayout) -> Tensor:
        """Return an output whose gradient can be observed.

        With the parameters out of autograd, the outputs of the first trainable layers become the leaves of the graph.
        """
        output = self.expand_output(output, layout)
        return output if output.requires_grad else output.detach().requires_grad_(True)

    def expand_output(self, output: Tensor, layout: UnitLayout) -> Tensor:
        """Return the output with a row for each row of the micro-batch."""
        if output.dim() < self.min_dims or output.shape[0] != layout.num_rows:
            raise UnsupportedLayerError(
                f"module '{self.name}' ({type(self.module).__name__}) gave an output of shape "
                f"{tuple(output.shape)}, but its first dimension must be the {layout.num_rows} rows of the micro-batch"
                ": keep the batch dimension first (batch_first=True), or freeze the module"
            )
        return output

    # -------------------------------------------------------------------------------- backward
    def observe(self, inputs: Sequence[Tensor], grads: Sequence[Tensor], layout: UnitLayout) -> None:
        """Take the module's inputs and the gradients of its outputs, all [rows, …], and form what is kept.

        Args:
            inputs: Of the module's forward.
            grads: Of its outputs.
            layout: That of the capture whose backward pass it is; another one was given up, and is not heard.

        Raises:
            UnsupportedLayerError: It is the second in one capture.
        """
        if layout is not self.layout:
            return
        if self.squared_norms is not None:
            raise UnsupportedLayerError(
                f"module '{self.name}' got its output gradient twice in one capture: call backward once per capture"
            )
        self.squared_norms, self.kept = self.summarise(inputs[0], grads[0], layout)
        self.operand_dtype = product_dtype(grads[0])

    def summarise(self, inputs: Tensor, grads: Tensor, layout: UnitLayout) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute units' squared gradient norms [2, U] for weights trained here, and what :meth:`add_clipped` needs."""
        raise NotImplementedError(f"{type(self).__name__} has no formula")

    def finish(self) -> None:  # noqa: B027
        """Close the backward pass, in which formulas have given their norms."""

    def cross_term(self) -> Tensor | None:
        """Return what a tied weight adds to the squared norms [2, U] of its two modules; None from the second."""
        return None

    # -------------------------------------------------------------------------------- clipped sum
    def erase(self, units: Tensor) -> None:
        """Make the ``units`` marked true contribute exactly zero, even where they hold inf or nan."""
        self.kept = {name: erase_units(value, units) for name, value in self.kept.items()}

    @abstractmethod
    def add_clipped(self, factors: Tensor, scale: float) -> None:
        """Add ``scale · Σᵢ factorsᵢ gᵢ`` to the ``grad`` of each trainable parameter of the module."""

    def add_formed(self, factors: Tensor, scale: float) -> None:
        """Run :meth:`add_clipped` for the parameters whose per-unit gradients were formed."""
        for parameter, name in ((self.weight, "weight_grads"), (self.bias, "bias_grads")):
            if parameter is not None and name in self.kept:
                grads = self.kept[name]
                add_to_grad(parameter, factors.to(grads.dtype) @ grads.flatten(1), scale)
