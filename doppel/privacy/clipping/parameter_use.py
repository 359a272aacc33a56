"""Finds weights that are used behind the back of their module."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from doppel.privacy.clipping.rule import UnsupportedLayerError

_HARMLESS = {"detach", "detach_", "requires_grad_", "register_hook", "__get__:data", "__get__:grad"}


class ParameterUseAudit(TorchFunctionMode):
    """Refuses an operation on a trainable parameter outside its own module's ``forward``.

    A model may well compute ``F.linear(h, self.embedding.weight)``. No module's hook sees that, so this use's
    share of the gradient would be missing from the norm and from the sum. The audit watches every torch
    operation of one forward pass.

    Args:
        parameters: (name, parameter) of all that is trained.
        current_module: Gives the module whose ``forward`` is running, or None.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, nn.Parameter]],
        current_module: Callable[[], nn.Module | None],
    ) -> None:
        super().__init__()
        self._names = {id(parameter): name for name, parameter in parameters}
        self._current_module = current_module

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if torch.is_grad_enabled() and any(isinstance(value, Tensor) for value in tree_leaves(result)):
            for value in tree_leaves((args, kwargs or {})):
                if id(value) in self._names and not self._is_expected(func, value):
                    raise UnsupportedLayerError(
                        f"parameter '{self._names[id(value)]}' is used outside the forward of its own module "
                        "(by "
                        f"{getattr(func, '__name__', func)}), where its per-sample gradient cannot be seen: "
                        "call the module, "
                        "or freeze the parameter"
                    )
        return result

    def _is_expected(self, func: Callable[..., Any], parameter: Tensor) -> bool:
        name = getattr(func, "__name__", "")
        if name == "__get__":
            name = f"__get__:{getattr(getattr(func, '__self__', None), '__name__', '')}"
        module = self._current_module()
        inside = module is not None and any(own is parameter for own in module.parameters(recurse=False))
        return inside or name in _HARMLESS
