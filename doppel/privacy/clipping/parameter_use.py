"""Finds weights that are used behind the back of their module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from doppel.privacy.clipping.refusals import UnsupportedLayerError

_Use = tuple[int, int]  # ids of a module and of a parameter
_HARMLESS = {"detach", "detach_", "requires_grad_", "register_hook", "__get__:data", "__get__:grad"}


class ParameterUseAudit(TorchFunctionMode):
    """Refuses an operation on a trainable parameter outside its own module's ``forward``.

    A model may well compute ``F.linear(h, self.embedding.weight)``. No module's hook sees that, so this use's
    share of the gradient would be missing from the norm and from the sum. The audit watches every torch
    operation of one forward pass. It also follows what a module makes of its parameters: a tensor that leaves its
    ``forward`` otherwise than as its output (such as ``self.penalty``) is refused where it is used.

    Args:
        parameters: (name, parameter) of all that is trained.
        owners: For each module with a rule, by id, the parameters (by id) that the rule covers.
        followed: Ids of the modules that are anybody's code, and may keep what they make of their parameters.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, nn.Parameter]],
        owners: Mapping[int, frozenset[int]],
        followed: frozenset[int],
    ) -> None:
        super().__init__()
        self._names = {id(parameter): name for name, parameter in parameters}
        self._owners = owners
        self._followed = followed
        self._running: list[tuple[nn.Module, set[_Use]]] = []  # modules, the innermost last, and what they have used
        self._made: WeakIdKeyDictionary = WeakIdKeyDictionary()  # tensor → uses

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if torch.is_grad_enabled() and _name(func) not in _HARMLESS:
            results = [value for value in tree_leaves(result) if isinstance(value, Tensor)]
            uses = self._uses_of(func, (args, kwargs)) if results else set()
            for value in results if uses else ():
                self._made[value] = self._made.get(value, frozenset()) | uses
        return result

    def run(self, module: nn.Module, forward: Callable[..., Any], *arguments: Any) -> Any:
        """Return the output of a module with a rule: the model may use what the module made of its own parameters."""
        self._running.append((module, set()))
        try:
            self._uses_of(type(module).forward, arguments)
            output = forward(*arguments)
        finally:
            uses = {use for use in self._running.pop()[1] if use[0] != id(module)}
        if self._running:
            self._running[-1][1].update(uses)
        for value in tree_leaves(output) if uses else ():
            if isinstance(value, Tensor):
                self._made[value] = uses
        return output

    def _uses_of(self, func: Callable[..., Any], arguments: Any) -> set[_Use]:
        """What ``func`` uses of modules that are followed; refuse what is not for it to use."""
        running, uses = [id(module) for module, _ in self._running], set()
        for value in tree_leaves(arguments):
            if isinstance(value, Tensor):
                uses |= self._made.get(value, frozenset())
                if id(value) in self._names:
                    owner = next((module for module in running if id(value) in self._owners.get(module, ())), 0)
                    uses.add((owner, id(value)))
        for owner, parameter in uses:
            if owner not in running:
                raise UnsupportedLayerError(
                    f"parameter '{self._names[parameter]}' is used outside the forward of its own module (by "
                    f"{getattr(func, '__name__', func)}), where its per-sample gradient cannot be seen: call the "
                    "module, return what is made of the parameter, or freeze it"
                )
        uses = {use for use in uses if use[0] in self._followed}
        if self._running:
            self._running[-1][1].update(uses)
        return uses


def _name(func: Callable[..., Any]) -> str:
    name = getattr(func, "__name__", "")
    if name == "__get__":
        return f"__get__:{getattr(getattr(func, '__self__', None), '__name__', '')}"
    return name
