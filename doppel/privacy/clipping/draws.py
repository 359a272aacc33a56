"""Random numbers of a layer's forward pass: noted as they are drawn, and given again to each unit alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_ATEN = torch.ops.aten
#: What is drawn without a look at the layer's input: its shape says for which unit each number is.
_REPEATABLE = frozenset(
    [
        _ATEN.bernoulli, _ATEN.bernoulli_, _ATEN.uniform_, _ATEN.normal_, _ATEN.exponential_, _ATEN.rand, _ATEN.randn,
        _ATEN.rand_like, _ATEN.randn_like, _ATEN.native_dropout,
    ]
)  # fmt: skip


class UnrepeatableDrawError(RuntimeError):
    """A random number that no second run can be given."""


def _is_random(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


class NoteDraws(TorchDispatchMode):
    """Notes every random tensor that is drawn within.

    Attributes:
        draws: In their order; None for one that cannot be repeated.
    """

    def __init__(self) -> None:
        super().__init__()
        self.draws: list[Tensor | None] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if _is_random(func):
            if func.overloadpacket in _REPEATABLE:
                drawn = result[1] if isinstance(result, tuple) else result
                self.draws.append(drawn.clone())  # a mask may be scaled in place
            else:
                self.draws.append(None)
        return result


class RepeatDraws(TorchDispatchMode):
    """Gives, within a ``vmap`` over units, each unit the numbers that were drawn for it. No generator is touched.

    A number's unit is told by its place: the dimension that is as many times as long as there are units holds the
    units one after the other. Whether that was right is seen by the layer's output, which must be the same again.

    Args:
        draws: What :class:`NoteDraws` has noted of the whole micro-batch.
        num_units: Units in the micro-batch.
        units: Those that run.
    """

    def __init__(self, draws: Sequence[Tensor | None], num_units: int, units: slice) -> None:
        super().__init__()
        self._draws = iter(draws)
        self._num_units = num_units
        self._units = units

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not _is_random(func):
            return func(*args, **(kwargs or {}))
        noted = next(self._draws, None)
        if noted is None or func.overloadpacket not in _REPEATABLE:
            raise UnrepeatableDrawError(f"{func} draws random numbers that cannot be given again")
        if func.overloadpacket is _ATEN.native_dropout:
            x, p = args[:2]
            mask = self._of_units(noted, x.shape)
            return x * mask * (1.0 / (1.0 - p) if p < 1 else 0.0), mask
        if func._schema.is_mutable:
            return args[0].copy_(self._of_units(noted, args[0].shape))
        shape = args[0] if not isinstance(args[0], Tensor) else args[0].shape
        return self._of_units(noted, torch.Size(shape)).clone()

    def _of_units(self, noted: Tensor, shape: torch.Size) -> Tensor:
        if noted.shape == shape[1:]:  # one number for all
            return noted.expand(shape)
        for dim, (whole, own) in enumerate(zip(noted.shape, shape[1:], strict=False)):
            if whole == own * self._num_units and noted.dim() == len(shape) - 1:
                of_units = noted.unflatten(dim, (self._num_units, own)).movedim(dim, 0)[self._units]
                if of_units.shape == shape:
                    return of_units
        raise UnrepeatableDrawError(
            f"random numbers of shape {tuple(noted.shape)} are not those of {self._num_units} units"
        )
