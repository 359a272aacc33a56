"""Watches a model's forward pass within a capture, so that every trainable layer's rule sees its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import nn

from doppel.privacy.clipping.functional import FunctionalRule
from doppel.privacy.clipping.observed import ObservedRule
from doppel.privacy.clipping.parameter_use import ParameterUseAudit
from doppel.privacy.clipping.rule import Capture, HookedRule, LayerRule, UnsupportedLayerError


class ModelObserver:
    """Stands in the place of layers, or has hooks on them, while a capture lasts; made once.

    Args:
        rules: One for each module with trainable parameters.
    """

    def __init__(self, rules: list[LayerRule]) -> None:
        self._rules = rules
        self._hooked = [rule for rule in rules if isinstance(rule, HookedRule)]
        observed = [rule for rule in rules if isinstance(rule, ObservedRule)]
        self._forwards = [(vars(rule.module), partial(self._forward, rule, rule.plain_forward)) for rule in observed]
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
        for own, forward in self._forwards:
            own["forward"] = forward
        for rule in self._hooked:
            hook = partial(self._on_forward, rule)
            stack.callback(rule.module.register_forward_hook(hook, with_kwargs=True).remove)
        stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)  # it computes a whole encoder layer without calling its parts
        if audited:
            for rule in self._hooked:
                stack.callback(rule.module.register_forward_pre_hook(self._on_forward_start).remove)
            owners = {id(rule.module): frozenset(map(id, rule.trained_parameters)) for rule in self._rules}
            followed = frozenset(id(rule.module) for rule in self._rules if isinstance(rule, FunctionalRule))
            self._audit = ParameterUseAudit(audited, owners, followed, self._running_modules)
            stack.enter_context(self._audit)

    def _detach(self) -> None:
        for own, _ in self._forwards:
            own.pop("forward", None)
        self._running_modules.clear()
        self._audit = self._capture = None

    def _begin(self, rule: LayerRule) -> bool | None:
        """Note a call; return whether it is a checkpoint's second, and None if it has no gradient."""
        assert self._capture is not None
        if not torch.is_grad_enabled():
            self._capture.without_grad.add(rule)
            return None
        # a checkpoint computes its activations again inside the backward pass, for the first call's observer
        is_again = torch._C._current_graph_task_id() != -1
        if not is_again:
            self._capture.begin(rule)
        elif rule not in self._capture.started or rule in self._capture.without_grad:
            raise reentrant_checkpoint_error(rule)
        return is_again

    def _forward(self, rule: ObservedRule, plain: Any, *args: Any, **kwargs: Any) -> Any:
        if self._begin(rule) is None:
            return plain(*args, **kwargs)
        assert self._capture is not None
        if self._audit is None:
            return rule.call(self._capture, args, kwargs)
        self._running_modules.append(rule.module)
        try:
            output = rule.call(self._capture, args, kwargs)
            self._audit.follow(rule.plain_forward, (args, kwargs), output)
        finally:
            self._running_modules.pop()
        return output

    def _on_forward_start(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self._running_modules.append(module)

    def _on_forward(
        self, rule: HookedRule, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> Any:
        while self._running_modules and self._running_modules.pop() is not module:
            pass  # a checkpoint may leave a forward early
        is_again = self._begin(rule)
        if is_again is None:
            return None
        assert self._capture is not None
        with torch._C.DisableTorchFunction():  # what is done here is no use of a parameter
            seen = rule.watch(self._capture, args, kwargs, output, is_again)
        if self._audit is not None:
            self._audit.pass_on(module, output, seen)
        return seen


def reentrant_checkpoint_error(rule: LayerRule) -> UnsupportedLayerError:
    return UnsupportedLayerError(
        f"module '{rule.name}' ran without gradients inside a capture, as reentrant checkpointing does: use gradient "
        "checkpointing with use_reentrant=False, and run evaluations outside the capture"
    )
