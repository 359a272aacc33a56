"""Half-precision copies of linear layers' weights, made once where autocast makes them in every forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class _Copy:
    version: int
    address: int
    values: Tensor


class HalfWeights:
    """Lets the ``nn.Linear`` layers of a model multiply by copies of their weights in autocast's dtype.

    Autocast keeps a copy of a weight that autograd follows, and makes one anew in each forward pass of a weight that it
    does not: those that are frozen, as under LoRA, and all of them in a private capture. Here each is copied once, a
    frozen one for good and a trained one for a step. The copies hold what autocast's do, so the numbers stay the same
    to the last bit, and they take no more memory than the backward pass holds anyway.

    What autograd follows, other kinds of layers, and everything outside of autocast stays as it was.

    Args:
        model: Its ``nn.Linear`` layers; not subclasses, which may compute something else.
    """

    def __init__(self, model: nn.Module) -> None:
        self._layers = [module for module in model.modules() if type(module) is nn.Linear]
        self._copies: dict[int, _Copy] = {}

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Hold half-precision weights within this block, a step: weights may change after their last use only."""
        own = [layer for layer in self._layers if "forward" not in vars(layer)]
        for layer in own:
            layer.forward = partial(self._forward, layer)  # type: ignore[method-assign]
        try:
            yield
        finally:
            for layer in own:
                del layer.forward
            trained = {id(layer.weight) for layer in own if layer.weight.requires_grad}
            self._copies = {key: copy for key, copy in self._copies.items() if key not in trained}

    def _forward(self, layer: nn.Linear, input: Tensor) -> Tensor:
        device, weight = input.device.type, layer.weight
        # a mapped or differentiated weight (torch.func) is no Parameter
        if weight.requires_grad or type(weight) is not nn.Parameter or not torch.is_autocast_enabled(device):
            return F.linear(input, weight, layer.bias)
        return F.linear(input, self._kept(weight, torch.get_autocast_dtype(device)), layer.bias)

    def _kept(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        copy = self._copies.get(id(weight))
        if (
            copy is None
            or copy.values.dtype is not dtype
            or copy.version != weight._version
            or copy.address != weight.data_ptr()
        ):
            copy = _Copy(weight._version, weight.data_ptr(), weight.detach().to(dtype))
            self._copies[id(weight)] = copy
        return copy.values
