"""Half-precision copies of trained linear layers' weights, made once a step where autocast makes one in each pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class HalfWeights:
    """Lets the trained ``nn.Linear`` layers of a model multiply by copies of their weights in autocast's dtype.

    Autocast keeps a copy of a weight that autograd follows, and makes one anew in each forward pass of a weight that it
    does not: all of them in a private capture. Here each is copied once for a step. The copies hold what autocast's do,
    so the numbers stay the same to the last bit, and they take no more memory than the backward pass holds anyway.

    What autograd follows, other kinds of layers, frozen weights (:mod:`doppel.models.frozen_layers`) and everything
    outside of autocast stays as it was.

    Args:
        model: Its trained ``nn.Linear`` layers; not subclasses, which may compute something else. Outside of a capture.
    """

    def __init__(self, model: nn.Module) -> None:
        self._layers = [m for m in model.modules() if type(m) is nn.Linear and m.weight.requires_grad]
        self._copies: dict[tuple[int, torch.dtype], Tensor] = {}

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
            self._copies = {}

    def _forward(self, layer: nn.Linear, input: Tensor) -> Tensor:
        device, weight = input.device.type, layer.weight
        # a mapped or differentiated weight (torch.func) is no Parameter
        if weight.requires_grad or type(weight) is not nn.Parameter or not torch.is_autocast_enabled(device):
            return F.linear(input, weight, layer.bias)
        key = id(weight), torch.get_autocast_dtype(device)
        if key not in self._copies:
            self._copies[key] = weight.detach().to(key[1])
        return F.linear(input, self._copies[key], layer.bias)
