"""What a layer rule is: how one module's per-unit norms and clipped sum are formed; and what a capture has of all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from doppel.errors import UserError
from doppel.privacy.clipping.arithmetic import Norms
from doppel.privacy.clipping.groups import FormedGradients, Grams, LayerInput, Reader
from doppel.privacy.clipping.held_weights import HeldWeights


class UnsupportedLayerError(UserError):
    """A trainable parameter whose per-sample gradient norm the engine cannot give exactly.

    The message is one line: the parameter or module, why it is refused, and what to do. It is always raised;
    a parameter is never left out of the norm in silence.
    """


class LayerRule(ABC):
    """The rule of one module, which stands in the place of the module's ``forward`` while a capture lasts.

    Args:
        name: The module's name in the model, for messages.
        module: The module. Each of its parameters may be trainable or frozen.
    """

    module_type: ClassVar[type[nn.Module]] = nn.Module
    parameter_names: ClassVar[tuple[str, ...]] = ("weight", "bias")
    min_dims: ClassVar[int] = 2  # of an output: a vector may run over rows or over features

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name, self.module = name, module
        self.plain_forward = module.forward
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

    def check_rows(self, output: Tensor, capture: Capture) -> None:
        """Refuse an output whose first dimension is not the rows of the micro-batch."""
        if output.dim() < self.min_dims or output.shape[0] != capture.num_rows:
            how = "keep the batch dimension first (batch_first=True), or freeze the module"
            others = {_adapted(rule.name) for rule in capture.started} - {None, adapted := _adapted(self.name)}
            if adapted is not None:
                fitting = ", ".join(sorted(map(str, others)))
                how = f"give LoRA to layers that have it alone, such as lora.target_modules=[{fitting}]"
            raise UnsupportedLayerError(
                f"module '{self.name}' ({type(self.module).__name__}) gave an output of shape "
                f"{tuple(output.shape)}, but its first dimension must be the {capture.num_rows} rows of the "
                f"micro-batch: {how if others or adapted is None else 'train without lora'}"
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


class KeepingRule(LayerRule):
    """A rule that keeps what its norm and its clipped sum are formed of itself.

    Attributes:
        kept: What :meth:`add_clipped` needs, by name; the first dimension of every tensor is the units.
    """

    kept: dict[str, Tensor]

    def clear(self) -> None:
        """Forget the micro-batch and free its buffers."""
        self.kept = {}

    @abstractmethod
    def norms(self) -> Norms:
        """Return what is known of the norms of the units' gradients."""

    @abstractmethod
    def erase(self, units: Tensor) -> None:
        """Make the ``units`` marked true contribute exactly zero, even where they hold inf or nan."""

    @abstractmethod
    def add_clipped(self, weights: Tensor) -> None:
        """Add Σᵢ weightsᵢ gᵢ to the ``grad`` of each trainable parameter of the module."""


def _adapted(name: str) -> str | None:
    """The name in its parent of the layer that an adapter of peft is of: ``fc1`` of ``….fc1.lora_A.default``."""
    layer, is_adapter, _ = name.partition(".lora_")
    return layer.rpartition(".")[2] if is_adapter else None


class Capture:
    """The state of one capture; a new object for each, so that what was given up is not heard in the next.

    Args:
        num_units: Units U in the micro-batch: unit 0's rows, then unit 1's, …
        rows_per_unit: Rows of every unit; they are clipped together.
        formed: Where units' gradients are formed side by side, by the id of a parameter.
        num_grams: Layers that may have Gram matrices.
        weights: Of layers that multiply.
        start: A number that requires a gradient: leaf of the graph where an input does not.
    """

    def __init__(
        self,
        num_units: int,
        rows_per_unit: int,
        formed: dict[int, FormedGradients],
        num_grams: int,
        weights: HeldWeights,
        start: Tensor,
    ) -> None:
        self.num_units, self.num_rows = num_units, num_units * rows_per_unit
        self.start, self.weights = start, weights
        self.is_open = True
        self.started: set[LayerRule] = set()
        self.without_grad: set[LayerRule] = set()
        self.grams: dict[object, Grams] = {}
        self.inputs: list[LayerInput] = []
        self.observed: set[LayerRule] = set()
        self._formed, self._num_grams = formed, num_grams
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

    def read(self, x: Tensor, dtype: torch.dtype | None) -> tuple[Tensor, LayerInput]:
        """Return an input in the dtype of its product, and its record: the same for all that read it in a row."""
        last = self._last
        if last is None or last[0] is not x or last[1] != x._version or last[2].dtype is not (dtype or x.dtype):
            last = self._last = x, x._version, x.to(dtype or x.dtype), LayerInput()
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
        """Return where units' gradients of a parameter are written to: [U, \\*shape], wide."""
        return self._formed[id(parameter)].place(parameter, self.num_units)

    def keep(self, rule: Reader, shared: LayerInput, G: Tensor, flat_G: Tensor) -> None:
        """Keep the factors of a weight's gradient, and form their Gram matrices."""
        key = G.shape[1], G.dtype
        if key not in self.grams:
            self.grams[key] = Grams(G.shape[1], self._num_grams, self.num_units, G)
        self.grams[key].add(shared, G)
        if not shared.readers:
            self.inputs.append(shared)
        shared.readers.append((rule, G, flat_G))

    def close(self) -> None:
        """Free everything."""
        self.is_open = False
        self.grams, self.inputs, self._last = {}, [], None
