"""Watches a model's forward pass within a capture, so that every trainable layer's rule sees its gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from doppel.head_loss import set_head_observer
from doppel.privacy.clipping.audit import ParameterUseAudit
from doppel.privacy.clipping.errors import UnsupportedLayerError
from doppel.privacy.clipping.fused_head import FusedHead
from doppel.privacy.clipping.grad_samplers import is_replaying
from doppel.privacy.clipping.linear import LinearRule
from doppel.privacy.clipping.materialize import MaterializedHead, MaterializeRule
from doppel.privacy.clipping.observe import ObserveGradient
from doppel.privacy.clipping.rule import LayerRule, UnitLayout
from doppel.privacy.clipping.segments import RunSegment, Segment
from doppel.privacy.clipping.tied import SharedParameter, TiedPair


class ModelObserver:
    """Hooks on the layers of a model, and stand-ins for its checkpoints, while a capture lasts.

    Args:
        model: The model.
        rules: One for each module with trainable parameters.
        shared: Parameters that several of these modules share.

    Attributes:
        segments: Checkpointed parts of the model whose layers' norms are known, in the order of the backward pass.
    """

    def __init__(
        self, model: nn.Module, rules: Sequence[LayerRule], shared: Sequence[TiedPair | SharedParameter]
    ) -> None:
        self.segments: list[Segment] = []
        self._model = model
        self._rules = rules
        self._shared = shared
        self._layout = UnitLayout(1, 1)
        self._hooks: list[RemovableHandle] = []
        self._running_modules: list[nn.Module] = []  # as their calls are nested
        self._in_segment = False

    def attach(self, stack: ExitStack, layout: UnitLayout, audited: Sequence[tuple[str, nn.Parameter]]) -> None:
        """Observe until ``stack`` is closed.

        Args:
            stack: Takes what ends the observation.
            layout: Units and rows of the micro-batch.
            audited: (name, parameter) whose use outside their own modules is looked for; empty to leave that out.
        """
        self._layout = layout
        stack.callback(self._running_modules.clear)
        stack.callback(self._remove_hooks)
        self._add_hooks()
        for rule in self._rules:
            if isinstance(rule, LinearRule | MaterializeRule) and rule.is_head:
                set_head_observer(rule.module, partial(self._start_fused_head, rule, layout))
                stack.callback(set_head_observer, rule.module, None)
        for module in self._model.modules():
            if getattr(module, "gradient_checkpointing", False) and hasattr(module, "_gradient_checkpointing_func"):
                stack.callback(setattr, module, "_gradient_checkpointing_func", module._gradient_checkpointing_func)
                module._gradient_checkpointing_func = self._checkpoint  # type: ignore[assignment]
        if audited:
            for rule in self._rules:
                stack.callback(rule.module.register_forward_pre_hook(self._on_forward_start).remove)
            is_watching = lambda: torch.is_grad_enabled() or self._in_segment  # noqa: E731
            stack.enter_context(ParameterUseAudit(audited, self._running_module, is_watching))

    def _add_hooks(self) -> None:
        for rule in self._rules:
            hook = partial(self._on_forward, rule, self._layout)
            self._hooks.append(rule.module.register_forward_hook(hook, with_kwargs=True))

    def _remove_hooks(self) -> None:
        while self._hooks:
            self._hooks.pop().remove()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Without hooks: a compiled part of the model brings its own observation."""
        self._remove_hooks()
        try:
            yield
        finally:
            self._add_hooks()

    def _running_module(self) -> nn.Module | None:
        return self._running_modules[-1] if self._running_modules else None

    def _on_forward_start(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self._running_modules.append(module)

    def _on_forward(
        self,
        rule: LayerRule,
        layout: UnitLayout,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Tensor,
    ) -> Tensor | None:
        while self._running_modules and self._running_modules.pop() is not module:
            pass  # a checkpoint may leave a forward early
        if is_replaying():
            return None
        if not torch.is_grad_enabled():
            rule.ran_without_grad = rule.ran_without_grad or not self._in_segment
            return None
        output = rule.prepare_output(output, layout)
        tensors = [tensor.detach() for tensor in rule.tensors_to_save(args, kwargs, output)]
        if torch._C._current_graph_task_id() != -1 and not self._in_segment:
            # a checkpoint computes its activations again inside the backward pass, for the first call's observer
            if not rule.is_recorded or rule.ran_without_grad:
                raise reentrant_checkpoint_error(rule)
        else:
            rule.record(tensors[0], layout)
        return ObserveGradient.apply(output, rule, *tensors)

    def _start_fused_head(self, rule: LinearRule | MaterializeRule, layout: UnitLayout) -> FusedHead | MaterializedHead:
        pairs = [pair for pair in self._shared if isinstance(pair, TiedPair) and pair.head is rule]
        return rule.start_fused_head(layout, pairs[0].embedding.ids if pairs else None)

    def _checkpoint(self, run: Callable[..., Any], *args: Any) -> Any:
        """Takes the place of Hugging Face's checkpointing function."""
        if not torch.is_grad_enabled() or self._in_segment:
            return run(*args)
        segment = Segment(run, args)

        def first_run() -> Any:
            self._in_segment = True
            try:
                return run(*args)
            finally:
                self._in_segment = False

        def on_backward(grads: tuple[Tensor | None, ...]) -> list[Tensor | None]:
            before = {id(rule) for rule in self._rules if rule.squared_norms is not None}
            self._in_segment = True
            try:
                found = segment.backward(grads)
            finally:
                self._in_segment = False
            segment.rules = [r for r in self._rules if r.squared_norms is not None and id(r) not in before]
            if segment.rules:  # else all of it is frozen
                self.segments.append(segment)
            for rule in segment.rules:
                if any(rule in pair.rules for pair in self._shared):
                    raise UnsupportedLayerError(
                        f"module '{rule.name}' has a tied weight and is inside a checkpointed part of the model: "
                        "checkpoint the blocks between embedding and head only"
                    )
                rule.kept = {}
                rule.operand_dtype = segment.dtype
            return found

        anchor = torch.zeros((), requires_grad=True)
        return RunSegment.apply(first_run, on_backward, anchor, *(args[i] for i in segment.differentiable))


def reentrant_checkpoint_error(rule: LayerRule) -> UnsupportedLayerError:
    return UnsupportedLayerError(
        f"module '{rule.name}' ran without gradients inside a capture, as reentrant checkpointing does: use "
        "gradient "
        "checkpointing with use_reentrant=False, and run evaluations outside the capture"
    )
