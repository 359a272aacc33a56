"""What a layer rule is: how one module's per-unit norms and clipped sum are formed; and what a capture has of all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from doppel.privacy.clipping.formed import FormedGradients
from doppel.privacy.clipping.groups import AddProduct, Grams, LayerInput
from doppel.privacy.clipping.held_weights import HeldWeights
from doppel.privacy.clipping.parameter_use import ParameterUseAudit
from doppel.privacy.clipping.refusals import UnsupportedLayerError, changed_in_place


class LayerRule(ABC):
    """The rule of one module, which stands in the place of the module's ``forward`` while a capture lasts.

    Args:
        name: The module's name in the model, for messages.
        module: The module. Each of its parameters may be trainable or frozen.
    """

    module_type: ClassVar[type[nn.Module]] = nn.Module
    parameter_names: ClassVar[tuple[str, ...]] = ("weight", "bias")
    min_dims: ClassVar[int] = 2  # of an output: a vector may run over rows or over features
    is_formed = True  # units' gradients of the weight are; else they are products

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name, self.module, self.plain_forward = name, module, module.forward
        self._has_own_forward = "forward" in vars(module)
        self.weight: nn.Parameter = getattr(module, "weight", None)  # type: ignore[assignment]
        self.bias: nn.Parameter | None = getattr(module, "bias", None)
        self.trains_weight = isinstance(self.weight, nn.Parameter) and self.weight.requires_grad
        self.trains_bias = isinstance(self.bias, nn.Parameter) and self.bias.requires_grad

    @property
    def trained_parameters(self) -> list[nn.Parameter]:
        """The module's own parameters that are trained."""
        both = ((self.weight, self.trains_weight), (self.bias, self.trains_bias))
        return [p for p, trains in both if trains and p is not None]

    @property
    def formed_parameters(self) -> list[nn.Parameter]:
        """Those whose units' gradients are formed side by side (:class:`.formed.FormedGradients`)."""
        return [p for p in self.trained_parameters if self.is_formed or p is self.bias]

    @classmethod
    def matches(cls, module: nn.Module) -> bool:
        """Return whether this rule is exact for ``module``. A subclass of a known type may compute something else."""
        return type(module) is cls.module_type

    def call(self, capture: Capture, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the output of the module, whose gradient is observed."""
        if len(args) + len(kwargs) != 1:
            raise UnsupportedLayerError(
                f"module '{self.name}' ({type(self.module).__name__}) was called with more than its input, which its "
                "rule does not know: give it its input alone, or freeze it"
            )
        x = args[0] if args else next(iter(kwargs.values()))
        output: Tensor = observed(self, capture, None if x.requires_grad else capture.start, x)
        self.check_rows(output, capture)
        return output

    def leave(self) -> None:
        """Give the module its ``forward`` back."""
        vars(self.module).pop("forward", None)
        if self._has_own_forward:
            vars(self.module)["forward"] = self.plain_forward

    def check_rows(self, output: Tensor, capture: Capture) -> None:
        """Refuse an output whose first dimension is not the rows of the micro-batch, whose number is private."""
        if output.dim() < self.min_dims or output.shape[0] != capture.num_rows:
            how = "keep the batch dimension first (batch_first=True), or freeze the module"
            others = {_adapted(rule.name) for rule in capture.started} - {None, adapted := _adapted(self.name)}
            if adapted is not None:
                fitting = ", ".join(sorted(map(str, others)))
                how = f"give LoRA to layers that have it alone, such as lora.target_modules=[{fitting}]"
            raise UnsupportedLayerError(
                f"module '{self.name}' ({type(self.module).__name__}) gave an output of {output.dim()} dimensions, "
                f"but the first dimension, of {self.min_dims} or more, must be the rows of the micro-batch: "
                f"{how if others or adapted is None else 'train without lora'}"
            )

    @abstractmethod
    def compute(self, ctx: Any, x: Tensor, /) -> Any:
        """Return the output for the input; save for backward what :meth:`pull` needs."""

    @abstractmethod
    def pull(self, ctx: Any, grads: Tensor, /) -> tuple[Tensor | None, ...]:
        """Give the capture the units' gradients, from those of the output; return that of the input if it is needed.

        A capture that was given up is no longer open, and takes nothing.
        """


class ObservedLayer(torch.autograd.Function):
    """A layer as one node of the graph, by the formulas of its rule, which is shown the output's gradient.

    A tensor hook would see it too, until the output is a view that is changed in place: autograd then rebuilds the
    graph, the hook is never called, and the layer would be missing from the norm. After a function of our own, autograd
    refuses the change, or it is an operation after this one. What the rule needs again is *saved for backward*: where
    an input was changed in place, autograd refuses to go on, and a checkpoint may drop it and compute it again.
    """

    @staticmethod
    def forward(ctx: Any, rule: LayerRule, capture: Capture, start: Tensor | None, *tensors: Tensor) -> Any:
        ctx.rule, ctx.capture = rule, capture
        return rule.compute(ctx, *tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rule, capture = ctx.rule, ctx.capture
        if torch.is_grad_enabled():
            raise UnsupportedLayerError(
                f"module '{rule.name}' would be differentiated twice: call backward without create_graph=True"
            )
        if capture.is_open:
            capture.note_gradient(rule)
        with torch._C._DisableAutocast():
            return None, None, None, *rule.pull(ctx, *grads)


#: ``ObservedLayer.apply`` without what that of any function does for ``torch.func``, which takes as long as a product.
_apply = super(torch.autograd.Function, ObservedLayer).apply


def observed(*arguments: Any) -> Any:
    """Return the outputs of an :class:`ObservedLayer` for the arguments of its ``forward``."""
    return (ObservedLayer.apply if torch._C._are_functorch_transforms_active() else _apply)(*arguments)


def _adapted(name: str) -> str | None:
    """The name in its parent of the layer that an adapter of peft is of: ``fc1`` of ``….fc1.lora_A.default``."""
    layer, is_adapter, _ = name.partition(".lora_")
    return layer.rpartition(".")[2] if is_adapter else None


class Formable(Protocol):
    """Parameters whose units' gradients are formed; :class:`.formed.FormedPart` are, and calls of other layers."""

    @property
    def reached(self) -> list[nn.Parameter]:
        """Parameters that have gradients."""

    def squares(self) -> Tensor:
        """Return the squared norms of the units' gradients, [U] in float64; nothing cancels in them."""

    def add(self, weights: Tensor, erased: Tensor | None) -> None:
        """Add Σᵢ weightsᵢ gᵢ to each ``grad``; units marked ``erased`` add exactly zero, even where they hold nan."""


class Capture:
    """The state of one capture; a new object for each, so that what was given up is not heard in the next.

    Args:
        num_units: Units U in the micro-batch: unit 0's rows, then unit 1's, …
        rows_per_unit: Rows of every unit; they are clipped together.
        formed: Where units' gradients are formed side by side.
        weights: Of layers that multiply.
        num_grams: Layers that may have Gram matrices.
        constant: As :class:`.groups.Grams` takes it.

    Attributes:
        start: A number that requires a gradient: leaf of the graph where an input does not.
        is_open: Whether it takes gradients.
        started: Whose layers have run.
        without_grad: Whose layers have run without a graph.
        observed: Whose layers have had their output gradient.
        grams: By positions and dtype.
        inputs: Of layers whose weights have products as gradients, in the order of the backward pass.
        calls: Of layers without a formula.
    """

    def __init__(
        self,
        num_units: int,
        rows_per_unit: int,
        formed: FormedGradients,
        weights: HeldWeights,
        num_grams: int,
        constant: Callable[..., Tensor],
    ) -> None:
        self.num_units, self.num_rows = num_units, num_units * rows_per_unit
        self.weights = weights
        self.start = torch.zeros((), requires_grad=True)
        self.is_open = True
        self.started: set[LayerRule] = set()
        self.without_grad: set[LayerRule] = set()
        self.observed: set[LayerRule] = set()
        self.grams: dict[object, Grams] = {}
        self.inputs: list[LayerInput] = []
        self.calls: list[Formable] = []
        self._formed, self._num_grams, self._constant = formed, num_grams, constant
        self._last: tuple[Tensor, int, Tensor, LayerInput] | None = None
        self._versions: list[tuple[Tensor, int]] = []
        self._places: dict[int, Tensor] = {}

    # -------------------------------------------------------------------------------- forward
    @contextmanager
    def observing(self, rules: list[LayerRule], audit: ParameterUseAudit | None) -> Iterator[None]:
        """Put rules in the place of their layers' ``forward`` within this block.

        Args:
            rules: One for each module with trainable parameters.
            audit: Looks for uses of parameters outside their own modules; None leaves that out.
        """
        is_fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)  # it computes a whole encoder layer without calling its parts
        for rule in rules:
            vars(rule.module)["forward"] = partial(self._forward, rule, audit)
        try:
            with nullcontext() if audit is None else audit:
                yield
        finally:
            for rule in rules:
                rule.leave()
            torch.backends.mha.set_fastpath_enabled(is_fast)
            self._last = None

    def _forward(self, rule: LayerRule, audit: ParameterUseAudit | None, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            self.without_grad.add(rule)
            return rule.plain_forward(*args, **kwargs)
        if torch._C._current_graph_task_id() == -1:
            self._begin(rule)
        # else a checkpoint computes its activations again inside the backward pass, for the first call's node
        elif rule not in self.started or rule in self.without_grad:
            raise reentrant_checkpoint_error(rule)
        if audit is None:
            return rule.call(self, args, kwargs)
        return audit.run(rule.module, partial(rule.call, self), args, kwargs)

    def _begin(self, rule: LayerRule) -> None:
        if rule in self.started:
            raise UnsupportedLayerError(
                f"module '{rule.name}' ({type(rule.module).__name__}) was called twice in one capture, and a layer's "
                "rule gives the gradient of one call: run one forward and one backward per capture, use a module of "
                "its own for each call, or freeze it"
            )
        self.started.add(rule)

    def read(self, x: Tensor, dtype: torch.dtype | None) -> tuple[Tensor, LayerInput]:
        """Return an input in the dtype of its product, and its record: the same for all that read it in a row."""
        last = self._last
        if last is None or last[0] is not x or last[1] != x._version or last[2].dtype is not (dtype or x.dtype):
            last = self._last = x, x._version, x.to(dtype or x.dtype), LayerInput()
        return last[2], last[3]

    # -------------------------------------------------------------------------------- backward
    def note_gradient(self, rule: LayerRule) -> None:
        """Note that a layer's output gradient has come.

        Raises:
            UnsupportedLayerError: It is the second in one capture.
        """
        if rule in self.observed:
            raise UnsupportedLayerError(
                f"module '{rule.name}' ({type(rule.module).__name__}) got its output gradient twice in one capture: "
                "call backward once per capture"
            )
        self.observed.add(rule)

    def split(self, x: Tensor) -> Tensor:
        """Return [rows, …, f] → [U, n, f], all positions of all rows of a unit side by side."""
        return x if x.dim() == 3 and x.shape[0] == self.num_units else x.reshape(self.num_units, -1, x.shape[-1])

    def place(self, parameter: nn.Parameter) -> Tensor:
        """Return where units' gradients of a parameter are written, or added (:meth:`holds`): [U, \\*shape], wide."""
        if id(parameter) not in self._places:
            self._places[id(parameter)] = self._formed.place(parameter, self.num_units)
        return self._places[id(parameter)]

    def holds(self, parameter: nn.Parameter) -> bool:
        """Whether another layer has written there, so that this one is to add."""
        return id(parameter) in self._places

    def keep(self, shared: LayerInput, weight: nn.Parameter, add: AddProduct, G: Tensor, flat_G: Tensor) -> None:
        """Keep the factors of a weight's gradient, and form their Gram matrices; see :class:`.groups.LayerInput`."""
        key = G.shape[1], G.dtype
        if key not in self.grams:
            self.grams[key] = Grams(G.shape[1], self._num_grams, self.num_units, G, self._constant)
        assert shared.A is not None
        self.grams[key].add(shared, G)
        self._versions += ((shared.A, shared.A._version), (G, G._version))
        if not shared.readers:
            self.inputs.append(shared)
        shared.readers.append((weight, add, G, flat_G))

    def end_backward(self) -> None:
        """Refuse a product whose factors are not those that the norm was taken of: hooks, and backward passes of other
        functions, may write to a gradient that a layer has given away. Let go of what the backward pass alone needs.

        Raises:
            UnsupportedLayerError: Such a one was changed in place.
        """
        if any(x._version != version for x, version in self._versions):
            raise changed_in_place()
        self._versions, self._places = [], {}

    def close(self) -> None:
        """Free everything."""
        self.is_open = False
        self._formed.clear()
        self.grams, self.inputs, self.calls, self._versions, self._places = {}, [], [], [], {}


def reentrant_checkpoint_error(rule: LayerRule) -> UnsupportedLayerError:
    return UnsupportedLayerError(
        f"module '{rule.name}' ran without gradients inside a capture, as reentrant checkpointing does: use gradient "
        "checkpointing with use_reentrant=False, and run evaluations outside the capture"
    )
