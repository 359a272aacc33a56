"""What a layer rule is: how one module's per-unit norms and clipped sum are formed; and what a capture has of all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from doppel.errors import UserError
from doppel.privacy.clipping.arithmetic import Norms, wide_dtype
from doppel.privacy.clipping.groups import Constants, FormedGradients, Grams, LayerInput, Reader
from doppel.privacy.clipping.held_weights import HeldWeights


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
    def finish(self, capture: Capture) -> Norms | None:
        """Return what is known of the norms of the units' gradients; None: not observed."""

    @abstractmethod
    def erase(self, units: Tensor) -> None:
        """Make the ``units`` marked true contribute exactly zero, even where they hold inf or nan."""

    @abstractmethod
    def add_clipped(self, weights: Tensor) -> None:
        """Add Σᵢ weightsᵢ gᵢ to the ``grad`` of each trainable parameter of the module."""


class Capture:
    """The state of one capture; a new object for each, so that what was given up is not heard in the next.

    Args:
        num_units: Units U in the micro-batch: unit 0's rows, then unit 1's, …
        rows_per_unit: Rows of every unit; they are clipped together.
        planned: How many parameters of each shape may be formed side by side, and by None how many Gram matrices.
        constants: Index tensors of earlier captures.
        weights: Of layers that multiply.
        start: A number that requires a gradient: leaf of the graph where an input does not.
    """

    def __init__(
        self,
        num_units: int,
        rows_per_unit: int,
        planned: Counter[torch.Size | None],
        constants: Constants,
        weights: HeldWeights,
        start: Tensor,
    ) -> None:
        self.num_units, self.num_rows = num_units, num_units * rows_per_unit
        self.start, self.weights = start, weights
        self.is_open = True
        self.started: set[LayerRule] = set()
        self.without_grad: set[LayerRule] = set()
        self.formed: dict[object, FormedGradients] = {}
        self.grams: dict[object, Grams] = {}
        self.inputs: list[LayerInput] = []
        self.hooked: list[HookedRule] = []
        self._observed: set[LayerRule] = set()
        self._planned, self._constants = planned, constants
        self._last: tuple[Tensor, int, Tensor, LayerInput] | None = None

    # -------------------------------------------------------------------------------- forward
    def begin(self, rule: LayerRule) -> None:
        """Note that a module takes part.

        Raises:
            UnsupportedLayerError: It does so already. Two calls have one gradient, whose norm is not that of either.
        """
        if rule in self.started:
            raise UnsupportedLayerError(
                f"module '{rule.name}' ({type(rule.module).__name__}) was called twice in one capture, and a layer's "
                "rule gives the gradient of one call: run one forward and one backward per capture, use a module of "
                "its own for each call, or freeze it"
            )
        self.started.add(rule)
        if isinstance(rule, HookedRule):
            self.hooked.append(rule)

    def read(self, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, LayerInput]:
        """Return an input in the dtype of its product, and its record: the same for all that read it in a row."""
        last = self._last
        if last is None or last[0] is not x or last[1] != x._version or last[2].dtype is not dtype:
            last = self._last = x, x._version, x.to(dtype), LayerInput()
        return last[2], last[3]

    def end_forward(self) -> None:
        """Let go of what only a forward pass needs."""
        self._last = None

    # -------------------------------------------------------------------------------- backward
    def note_gradient(self, rule: LayerRule) -> None:
        """Note that a layer's output gradient has come.

        Raises:
            UnsupportedLayerError: It is the second in one capture.
        """
        if rule in self._observed:
            raise UnsupportedLayerError(
                f"module '{rule.name}' ({type(rule.module).__name__}) got its output gradient twice in one capture: "
                "call backward once per capture"
            )
        self._observed.add(rule)

    def split(self, x: Tensor) -> Tensor:
        """Return [rows, …, f] → [U, n, f], all positions of all rows of a unit side by side."""
        return x if x.dim() == 3 and len(x) == self.num_units else x.reshape(self.num_units, -1, x.shape[-1])

    def place(self, parameter: nn.Parameter, like: Tensor) -> Tensor:
        """Return where units' gradients of a parameter, formed from ``like``, are written to: [U, \\*shape], wide."""
        dtype = wide_dtype(like.dtype)
        key = parameter.shape, dtype
        if key not in self.formed:
            num = self._planned[parameter.shape]
            self.formed[key] = FormedGradients(parameter.shape, num, self.num_units, dtype)
        return self.formed[key].place(parameter, like)

    def keep(self, rule: Reader, shared: LayerInput, G: Tensor, flat_G: Tensor) -> None:
        """Keep the factors of a weight's gradient, and form their Gram matrices."""
        self._grams_of(G).add(shared, G)
        if not shared.readers:
            self.inputs.append(shared)
        shared.readers.append((rule, G, flat_G))

    def _grams_of(self, G: Tensor) -> Grams:
        key = G.shape[1], G.dtype
        if key not in self.grams:
            self.grams[key] = Grams(G.shape[1], self._planned[None], self.num_units, G, self._constants)
        return self.grams[key]

    # -------------------------------------------------------------------------------- the end
    @property
    def num_bytes(self) -> int:
        """What is held until the norms are known: units' gradients, and factors of them."""
        tensors = {id(x): x for shared in self.inputs for x in (shared.A, *(G for _, G, _ in shared.readers))}
        tensors |= {id(x): x for rule in self.hooked for x in rule.kept.values()}
        return sum(x.nbytes for x in tensors.values() if x is not None) + sum(
            group.num_bytes for group in self.formed.values()
        )

    def close(self) -> None:
        """Free everything."""
        self.is_open = False
        for rule in self.hooked:
            rule.reset()
        self.formed, self.grams, self.inputs, self.hooked, self._last = {}, {}, [], [], None
