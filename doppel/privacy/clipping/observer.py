"""Watches a model's forward pass within a capture, so that every trainable layer's rule sees its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from doppel.privacy.clipping.generic import GenericRule
from doppel.privacy.clipping.parameter_use import ParameterUseAudit
from doppel.privacy.clipping.rule import LayerRule, UnitLayout, UnsupportedLayerError, called_twice_error, first_input


class ObserveGradient(torch.autograd.Function):
    """Identity, whose backward shows the layer's input and output gradient to its rule.

    A tensor hook would do the same until the output is a view that is changed in place (a Linear followed by an
    in-place ReLU): autograd then rebuilds the graph, the hook is never called, and the layer would be missing from the
    norm. After a function of our own, autograd refuses the change in place. The input is *saved for backward*, so
    autograd also refuses to go on if it was changed in place, and a checkpoint may drop it and compute it again.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, rule: LayerRule, layout: UnitLayout, inputs: Tensor) -> Tensor:
        ctx.rule, ctx.layout = rule, layout
        ctx.save_for_backward(inputs)
        return output.view_as(output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor | None, ...]:
        (inputs,) = ctx.saved_tensors
        with torch.autocast(grads.device.type, enabled=False):
            if ctx.rule.handed_over is None:
                ctx.rule.observe(inputs, grads.detach(), ctx.layout)
            elif ctx.rule.layout is ctx.layout:
                ctx.rule.handed_over.receive((inputs,), (grads,))
        return grads, None, None, None


class ModelObserver:
    """Hooks on the layers of a model while a capture lasts.

    Args:
        rules: One for each module with trainable parameters. Where a module with a fast rule is called a second time in
            one capture, its generic rule takes the place of the fast one for good.
    """

    def __init__(self, rules: list[LayerRule]) -> None:
        self._rules = rules
        self._running_modules: list[nn.Module] = []  # as their calls are nested
        self._audit: ParameterUseAudit | None = None

    def attach(self, stack: ExitStack, layout: UnitLayout, audited: Sequence[tuple[str, nn.Parameter]]) -> None:
        """Observe until ``stack`` is closed.

        Args:
            stack: Takes what ends the observation.
            layout: Units and rows of the micro-batch.
            audited: (name, parameter) whose use outside their own modules is looked for; empty to leave that out.
        """
        stack.callback(self._running_modules.clear)
        for index, rule in enumerate(self._rules):
            hook = partial(self._on_forward, index, layout)
            stack.callback(rule.module.register_forward_hook(hook, with_kwargs=True).remove)
        for rule in self._rules:
            if isinstance(rule, GenericRule):
                stack.enter_context(rule.watched())
        stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)  # it computes a whole encoder layer without calling its parts
        if audited:
            for rule in self._rules:
                stack.callback(rule.module.register_forward_pre_hook(self._on_forward_start).remove)
            owners = {id(rule.module): frozenset(map(id, rule.trained_parameters)) for rule in self._rules}
            followed = frozenset(id(rule.module) for rule in self._rules if isinstance(rule, GenericRule))
            self._audit = ParameterUseAudit(audited, owners, followed, self._running_modules)
            stack.callback(setattr, self, "_audit", None)
            stack.enter_context(self._audit)

    def _on_forward_start(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self._running_modules.append(module)

    def _on_forward(
        self,
        index: int,
        layout: UnitLayout,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Any,
    ) -> Any:
        while self._running_modules and self._running_modules.pop() is not module:
            pass  # a checkpoint may leave a forward early
        rule = self._rules[index]
        if not torch.is_grad_enabled():
            rule.ran_without_grad = True
            return None
        # a checkpoint computes its activations again inside the backward pass, for the first call's observer
        is_again = torch._C._current_graph_task_id() != -1
        if is_again and (not rule.is_recorded or rule.ran_without_grad):
            raise reentrant_checkpoint_error(rule)
        if rule.is_recorded and not is_again and not isinstance(rule, GenericRule):
            self._hand_over(rule)
            rule = self._rules[index]
        if isinstance(rule, GenericRule):
            with torch._C.DisableTorchFunction():  # what is done here is no use of a parameter
                seen = rule.observe_call(args, kwargs, output, layout, is_again)
            if self._audit is not None:
                self._audit.pass_on(module, output, seen)
            return seen
        output = rule.prepare_output(output, layout)
        inputs = first_input(args, kwargs).detach()
        if not is_again:
            rule.record(inputs, layout)
            device = output.device.type
            rule.first_call = device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
        return ObserveGradient.apply(output, rule, layout, inputs)

    def _hand_over(self, rule: LayerRule) -> None:
        """A second call came: the generic rule takes the module, and one that shares its weight, with what they have.

        The first call is not run again. Its observation is in the graph, and what it brings in the backward pass, the
        input and the output's gradient, is all that the generic rule forms a gradient from.
        """
        before = [other for other in self._rules if other is rule or other is rule.tied_to]
        for old in before:
            if old.is_recorded and (old.first_call is None or old.squared_norms is not None):
                raise called_twice_error(rule)
        after = []
        for old in before:
            trained = set(map(id, old.trained_parameters))
            names = old.module.named_parameters(recurse=False, remove_duplicate=False)
            after.append(GenericRule(old.name, old.module, {name: p for name, p in names if id(p) in trained}))
        for old, new in zip(before, after, strict=True):
            new.group, new.bound, new.ran_without_grad = after, old.bound, old.ran_without_grad
            if old.first_call is not None:
                old.handed_over = new.adopt_call(old.layout, *old.first_call)
            self._rules[self._rules.index(old)] = new


def reentrant_checkpoint_error(rule: LayerRule) -> UnsupportedLayerError:
    return UnsupportedLayerError(
        f"module '{rule.name}' ran without gradients inside a capture, as reentrant checkpointing does: use "
        "gradient "
        "checkpointing with use_reentrant=False, and run evaluations outside the capture"
    )
