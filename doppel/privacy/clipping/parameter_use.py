"""Finds weights that are used behind the back of their module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from doppel.privacy.clipping.rule import UnsupportedLayerError

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
        running: The modules with a rule whose ``forward`` is running, the innermost last.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, nn.Parameter]],
        owners: Mapping[int, frozenset[int]],
        followed: frozenset[int],
        running: Sequence[nn.Module],
    ) -> None:
        super().__init__()
        self._names = {id(parameter): name for name, parameter in parameters}
        self._owners = owners
        self._followed = followed
        self._running = running
        self._made: WeakIdKeyDictionary = WeakIdKeyDictionary()  # tensor → {(id of module, id of parameter)}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if torch.is_grad_enabled() and _name(func) not in _HARMLESS:
            self.follow(func, (args, kwargs or {}), result)
        return result

    def follow(self, func: Callable[..., Any], arguments: Any, result: Any) -> None:
        """Note that ``func`` makes ``result`` of ``arguments``; refuse it if these are not for it to use."""
        results = [value for value in tree_leaves(result) if isinstance(value, Tensor)]
        made = set()
        for value in tree_leaves(arguments) if results else ():
            if isinstance(value, Tensor):
                made |= self._uses_of(func, value)
        for value in results if made else ():
            self._made[value] = self._made.get(value, frozenset()) | made

    def pass_on(self, module: nn.Module, output: Any, seen: Any) -> None:
        """Note that the output of ``module`` goes on as ``seen``, whose gradient is observed."""
        for old, new in zip(tree_leaves(output), tree_leaves(seen), strict=True):
            if isinstance(old, Tensor):
                self._made[new] = {use for use in self._made.get(old, ()) if use[0] != id(module)}

    def _uses_of(self, func: Callable[..., Any], value: Tensor) -> set[tuple[int, int]]:
        running = [id(module) for module in self._running]
        uses = set(self._made.get(value, ()))
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
        return {use for use in uses if use[0] in self._followed}


def _name(func: Callable[..., Any]) -> str:
    name = getattr(func, "__name__", "")
    if name == "__get__":
        return f"__get__:{getattr(getattr(func, '__self__', None), '__name__', '')}"
    return name
