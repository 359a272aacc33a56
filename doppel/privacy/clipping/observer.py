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
from doppel.privacy.clipping.rule import Capture, LayerRule, UnsupportedLayerError


class ModelObserver:
    """Puts rules in the place of their layers' ``forward`` while a capture lasts; made once.

    Args:
        rules: One for each module with trainable parameters.
    """

    def __init__(self, rules: list[LayerRule]) -> None:
        self._rules = rules
        self._forwards = [(vars(rule.module), partial(self._forward, rule)) for rule in rules]
        self._own = [(vars(r.module), r.plain_forward) for r in rules if "forward" in vars(r.module)]
        self._running_modules: list[nn.Module] = []  # as their calls are nested
        self._audit: ParameterUseAudit | None = None
        self._capture: Capture | None = None

    def attach(self, stack: ExitStack, capture: Capture, audited: Sequence[tuple[str, nn.Parameter]]) -> None:
        """Observe until ``stack`` is closed.

        Args:
            stack: Takes what ends the observation.
            capture: Is told of what is seen.
            audited: (name, parameter) whose use outside their own modules is looked for; empty to leave that out.
        """
        self._capture = capture
        stack.callback(self._detach)
        for variables, forward in self._forwards:
            variables["forward"] = forward
        stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)  # it computes a whole encoder layer without calling its parts
        if audited:
            owners = {id(rule.module): frozenset(map(id, rule.trained_parameters)) for rule in self._rules}
            followed = frozenset(id(rule.module) for rule in self._rules if isinstance(rule, FunctionalRule))
            self._audit = ParameterUseAudit(audited, owners, followed, self._running_modules)
            stack.enter_context(self._audit)

    def _detach(self) -> None:
        for variables, _ in self._forwards:
            variables.pop("forward", None)
        for variables, forward in self._own:
            variables["forward"] = forward
        self._running_modules.clear()
        self._audit = self._capture = None

    def _forward(self, rule: LayerRule, *args: Any, **kwargs: Any) -> Any:
        capture = self._capture
        assert capture is not None
        if not torch.is_grad_enabled():
            capture.without_grad.add(rule)
            return rule.plain_forward(*args, **kwargs)
        if torch._C._current_graph_task_id() == -1:
            capture.begin(rule)
        # else a checkpoint computes its activations again inside the backward pass, for the first call's node
        elif rule not in capture.started or rule in capture.without_grad:
            raise reentrant_checkpoint_error(rule)
        if self._audit is None:
            return rule.call(capture, args, kwargs)
        self._running_modules.append(rule.module)
        try:
            if isinstance(rule, FunctionalRule):
                output = rule.plain_forward(*args, **kwargs)
                with torch._C.DisableTorchFunction():  # what is done here is no use of a parameter
                    seen = rule.watch(capture, args, kwargs, output)
                self._audit.pass_on(rule.module, output, seen)
            else:
                seen = rule.call(capture, args, kwargs)
                self._audit.follow(rule.plain_forward, (args, kwargs), seen)
        finally:
            self._running_modules.pop()
        return seen


def reentrant_checkpoint_error(rule: LayerRule) -> UnsupportedLayerError:
    return UnsupportedLayerError(
        f"module '{rule.name}' ran without gradients inside a capture, as reentrant checkpointing does: use gradient "
        "checkpointing with use_reentrant=False, and run evaluations outside the capture"
    )
