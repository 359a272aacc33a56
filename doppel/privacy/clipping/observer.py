"""Watches a model's forward pass within a capture, so that every trainable layer's rule sees its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import nn

from doppel.privacy.clipping.functional import FunctionalRule
from doppel.privacy.clipping.parameter_use import ParameterUseAudit
from doppel.privacy.clipping.rule import LayerRule, UnitLayout, UnsupportedLayerError


class ModelObserver:
    """Hooks on the layers of a model while a capture lasts.

    Args:
        rules: One for each module with trainable parameters.
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
        for rule in self._rules:
            hook = partial(self._on_forward, rule, layout)
            stack.callback(rule.module.register_forward_hook(hook, with_kwargs=True).remove)
        stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)  # it computes a whole encoder layer without calling its parts
        if audited:
            for rule in self._rules:
                stack.callback(rule.module.register_forward_pre_hook(self._on_forward_start).remove)
            owners = {id(rule.module): frozenset(map(id, rule.trained_parameters)) for rule in self._rules}
            followed = frozenset(id(rule.module) for rule in self._rules if isinstance(rule, FunctionalRule))
            self._audit = ParameterUseAudit(audited, owners, followed, self._running_modules)
            stack.callback(setattr, self, "_audit", None)
            stack.enter_context(self._audit)

    def _on_forward_start(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self._running_modules.append(module)

    def _on_forward(
        self,
        rule: LayerRule,
        layout: UnitLayout,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Any,
    ) -> Any:
        while self._running_modules and self._running_modules.pop() is not module:
            pass  # a checkpoint may leave a forward early
        if not torch.is_grad_enabled():
            rule.ran_without_grad = True
            return None
        # a checkpoint computes its activations again inside the backward pass, for the first call's observer
        is_again = torch._C._current_graph_task_id() != -1
        if is_again and (not rule.is_recorded or rule.ran_without_grad):
            raise reentrant_checkpoint_error(rule)
        with torch._C.DisableTorchFunction():  # what is done here is no use of a parameter
            seen = rule.watch(args, kwargs, output, layout, is_again)
        if self._audit is not None:
            self._audit.pass_on(module, output, seen)
        return seen


def reentrant_checkpoint_error(rule: LayerRule) -> UnsupportedLayerError:
    return UnsupportedLayerError(
        f"module '{rule.name}' ran without gradients inside a capture, as reentrant checkpointing does: use gradient "
        "checkpointing with use_reentrant=False, and run evaluations outside the capture"
    )
