"""Book-keeping inside a compiled graph: the trunk of a model through ``torch.compile``, in forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from doppel.compilation import compile_static
from doppel.privacy.clipping.arithmetic import product_dtype
from doppel.privacy.clipping.rule import LayerRule, UnitLayout, UnsupportedLayerError, called_twice_error, first_input

_NO_INPUTS = torch.empty(0)


class CompiledFunction:
    """A part of the model that a clipper observes from inside of one compiled graph.

    A compiler cannot trace an observer that writes into a rule. So in the graph each layer is followed by
    :class:`_EmitSummary`, an identity without side effects whose backward returns what the rule's ``summarise`` forms
    *as the gradients of dummy inputs*, the slots: tensors of zeros without memory (all strides 0) that the forward pass
    ignores. Outside of the graph, :class:`_Slots` makes the slots and hands their "gradients" to the rules, and the
    clipped sum goes on as if the layers had been observed one by one. Nothing else is derived by hand: the graph's
    backward is autograd's own, which forms no weight gradient because the parameters are out of autograd.

    ==============================================  ===================================================================
    the first capture of a clipper                  runs without the compiler, under the audit of all parameter uses
    a new signature (shapes, dtypes, units, …)      one forward without gradients finds the shapes of the slots; the
                                                    graph is compiled, and the layers in it are compared with those of
                                                    that forward
    outside of a capture, gradients on              the function through ``torch.compile``, without any observer
    gradients off                                   the function itself
    a layer called twice                            :class:`UnsupportedLayerError`
    a layer called in the graph and outside of it   :class:`UnsupportedLayerError`
    ==============================================  ===================================================================

    With CUDA graphs (``mode="reduce-overhead"``) everything that the graph returns lies in buffers that its next call
    overwrites. What the rules keep is used up by ``accumulate``, which comes before the next capture, and the
    call marks the beginning of an iteration.

    Args:
        function: Computes what the loss is a function of, such as hidden states, with the modules of the model. Its
            arguments are tensors and plain values; it returns tensors, in any nesting of tuples, lists and dicts.
        rules: The rules of the clipper.
        current_layout: The layout of the capture that runs; None outside of a capture.
        is_audited: Whether a capture has passed the audit.
        without_hooks: A context in which the clipper's own hooks are gone.
        backend: Backend of ``torch.compile``.
        mode: Mode of ``torch.compile``.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        rules: Sequence[LayerRule],
        current_layout: Callable[[], UnitLayout | None],
        is_audited: Callable[[], bool],
        without_hooks: Callable[[], AbstractContextManager[None]],
        backend: str = "inductor",
        mode: str | None = None,
    ) -> None:
        self._function = function
        self._rules = rules
        self._current_layout = current_layout
        self._is_audited = is_audited
        self._without_hooks = without_hooks
        self._backend = backend
        self._mode = mode
        self._uses_cuda_graphs = mode in ("reduce-overhead", "max-autotune") and torch.cuda.is_available()
        self._plain = compile_static(function, backend, mode)
        self._graphs: dict[tuple[Any, ...], _Graph] = {}
        self._holder = _Holder()
        self._known: list[LayerRule] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function.

        Raises:
            UnsupportedLayerError: If a layer is used in a way that has no exact rule in a graph.
            torch._dynamo.exc.Unsupported: If the function does not fit into one graph.
        """
        layout = self._current_layout()
        if not torch.is_grad_enabled() or (layout is not None and not self._is_audited()):
            return self._function(*args, **kwargs)
        if self._uses_cuda_graphs:
            torch.compiler.cudagraph_mark_step_begin()
        if layout is None:
            return self._plain(*args, **kwargs)
        if self._known != self._rules:  # the generic rule took a layer that was called twice
            self._known, self._graphs = list(self._rules), {}
            self._forwards = [_observed_forward(rule, i, self._holder) for i, rule in enumerate(self._known)]
        with self._without_hooks():
            key = (layout, *_autocast_state(), *map(_describe, (*args, *kwargs.items())))
            if key not in self._graphs:
                sites = self._find_sites(layout, args, kwargs)
                self._graphs[key] = _Graph(sites, self._compile(layout))
            with self._observed():
                return self._run(self._graphs[key], layout, args, kwargs)

    def _run(self, graph: _Graph, layout: UnitLayout, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def on_backward(grads: Sequence[Tensor | None]) -> None:
            found = iter(grads)
            for site in graph.sites:
                values = [next(found) for _ in site.slots]
                self._hand_over(site, values, indices.get(site.index), layout)

        specs = [slot for site in graph.sites for slot in site.slots]
        anchor = torch.zeros((), requires_grad=True)
        slots = iter(_Slots.apply(anchor, on_backward, specs))
        slots_of = {site.index: [next(slots) for _ in site.slots] for site in graph.sites}
        output, called, indices = graph.run(slots_of, args, kwargs)
        if sorted(called) != [site.index for site in graph.sites]:
            names = {self._rules[i].name for i in {*called} ^ {site.index for site in graph.sites}} or {"?"}
            raise UnsupportedLayerError(
                f"the compiled function calls other layers than the function itself ({', '.join(sorted(names))}): let "
                "the layers that run depend on the shapes of its arguments only, or do not compile"
            )
        for site in graph.sites:
            self._rules[site.index].record(indices.get(site.index, _NO_INPUTS), layout)
        return output

    def _hand_over(
        self, site: _Site, values: Sequence[Tensor | None], indices: Tensor | None, layout: UnitLayout
    ) -> None:
        rule = self._rules[site.index]
        squared_norms, *kept = values
        if squared_norms is None:
            return  # the loss does not depend on this layer
        known = {} if indices is None else rule.keep_inputs(indices, layout)
        known |= dict(zip(site.names, kept, strict=True))  # type: ignore[arg-type]
        rule.receive(layout, squared_norms, known, site.dtype)

    def _compile(self, layout: UnitLayout) -> Callable[..., Any]:
        function, holder = self._function, self._holder

        def observed(slots: dict[int, list[Tensor]], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            trace = _Trace(layout, slots)
            holder.observer = trace
            output = function(*args, **kwargs)
            holder.observer = None
            return output, trace.called, trace.indices

        return compile_static(observed, self._backend, self._mode)

    @contextmanager
    def _observed(self) -> Iterator[None]:
        modules = [rule.module for rule in self._rules]
        own = [module.__dict__.get("forward") for module in modules]
        for module, forward in zip(modules, self._forwards, strict=True):
            module.forward = forward
        try:
            yield
        finally:
            for module, forward in zip(modules, own, strict=True):
                del module.forward
                if forward is not None:
                    module.forward = forward

    @torch.no_grad()
    def _find_sites(self, layout: UnitLayout, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[_Site]:
        """One forward without gradients: which layers are called, and what their rules will keep."""
        self._holder.observer = finder = _SiteFinder(layout)
        with self._observed():
            self._function(*args, **kwargs)
        return [finder.sites[index] for index in sorted(finder.sites)]


class _Holder:
    """Where the layers find what observes them."""

    observer: _SiteFinder | _Trace | None = None


class _SiteFinder:
    """Finds the layers that are called, without gradients."""

    def __init__(self, layout: UnitLayout) -> None:
        self.layout = layout
        self.sites: dict[int, _Site] = {}

    def see(self, rule: LayerRule, index: int, inputs: Tensor, output: Tensor) -> Tensor:
        """Note what the rule will keep of a layer."""
        if index in self.sites:
            raise called_twice_error(rule)
        with torch.autocast(output.device.type, enabled=False):
            squared_norms, kept = rule.summarise(inputs, torch.zeros_like(output), self.layout)
        names = [name for name, value in kept.items() if value.is_floating_point()]
        slots = [_Slot.like(value) for value in (squared_norms, *(kept[name] for name in names))]
        self.sites[index] = _Site(index, tuple(names), tuple(slots), product_dtype(output))
        return output


class _Trace:
    """What one run of the function collects while it is traced."""

    def __init__(self, layout: UnitLayout, slots: dict[int, list[Tensor]]) -> None:
        self.layout = layout
        self.slots = slots
        self.called: list[int] = []
        self.indices: dict[int, Tensor] = {}

    def see(self, rule: LayerRule, index: int, inputs: Tensor, output: Tensor) -> Tensor:
        """Let the backward pass of a layer fill its slots."""
        self.called.append(index)
        if index not in self.slots or self.called.count(index) > 1:
            return output  # to be refused when the graph has run
        if not inputs.is_floating_point():
            self.indices[index] = inputs
        return _EmitSummary.apply(output, inputs.detach(), rule, self.layout, *self.slots[index])


@dataclass(frozen=True)
class _Slot:
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def like(cls, value: Tensor) -> _Slot:
        return cls(value.shape, value.dtype, value.device)

    def make(self) -> Tensor:
        return torch.zeros((), dtype=self.dtype, device=self.device).expand(self.shape)


@dataclass(frozen=True)
class _Site:
    """A layer in a graph: number of its rule, names of what is kept, slots for the norms and for these, dtype."""

    index: int
    names: tuple[str, ...]
    slots: tuple[_Slot, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class _Graph:
    sites: list[_Site]
    run: Callable[..., Any]


class _Slots(torch.autograd.Function):
    """Makes the slots; its backward hands their gradients over, so that autograd neither copies nor keeps them."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, on_backward: Callable[[Sequence[Tensor | None]], None], specs: list[_Slot]
    ) -> tuple[Tensor, ...]:
        ctx.on_backward = on_backward
        ctx.set_materialize_grads(False)
        return tuple(spec.make() for spec in specs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[None, None, None]:
        ctx.on_backward(grads)
        return None, None, None


class _EmitSummary(torch.autograd.Function):
    """Identity, whose backward gives the slots what the rule makes of the layer's input and output gradient."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, inputs: Tensor, rule: LayerRule, layout: UnitLayout, *slots: Tensor) -> Any:
        ctx.save_for_backward(inputs)
        ctx.rule = rule
        ctx.layout = layout
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, grads: Tensor) -> Any:
        (inputs,) = ctx.saved_tensors
        with torch.autocast(grads.device.type, enabled=False):
            squared_norms, kept = ctx.rule.summarise(inputs, grads, ctx.layout)
        floating = [value for value in kept.values() if value.is_floating_point()]
        return grads, None, None, None, squared_norms, *floating


def _observed_forward(rule: LayerRule, index: int, holder: _Holder) -> Callable[..., Tensor]:
    """The forward of the rule's module, seen by the observer of the moment."""
    forward = rule.module.forward

    def observed_forward(*args: Any, **kwargs: Any) -> Tensor:
        observer = holder.observer
        assert observer is not None
        output = rule.expand_output(forward(*args, **kwargs), observer.layout)
        return observer.see(rule, index, first_input(args, kwargs), output)

    return observed_forward


def _autocast_state() -> list[Any]:
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    return [torch.is_autocast_enabled(d) and torch.get_autocast_dtype(d) for d in devices]


def _describe(value: Any) -> Any:
    """What of an argument decides on the shapes inside: everything but a tensor's numbers."""
    if isinstance(value, tuple):
        return tuple(map(_describe, value))
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype, value.device, value.requires_grad
    return value
