"""Weights of layers that multiply, in the dtype of their products, at fixed addresses."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class HeldWeights:
    """Matrices of layers, and the same transposed, in the dtype in which they are multiplied, at fixed addresses.

    Autocast makes a copy anew in each forward pass of a weight that autograd does not follow: all of them in a capture.
    Here all are made by one operation for a capture, or for a step (:meth:`.clipper.PerSampleClipper.begin_step`). They
    hold what autocast's do, to the last bit.

    Args:
        parameters: Of all layers that multiply.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self._parameters = parameters
        self._held: dict[torch.dtype | None, dict[int, tuple[Tensor, Tensor]]] = {}
        self._fresh: set[torch.dtype | None] = set()

    def forget(self) -> None:
        """Let weights change."""
        self._fresh.clear()

    def renew(self) -> None:
        """Make anew, where they are, the copies of every dtype that was asked for: a CUDA graph asks nobody."""
        for dtype in list(self._held):
            self.of(dtype)

    def of(self, dtype: torch.dtype | None) -> dict[int, tuple[Tensor, Tensor]]:
        """Return them by the id of the parameter, in a dtype, or in that of each parameter."""
        if dtype not in self._fresh:
            self._refresh(dtype)
            self._fresh.add(dtype)
        return self._held[dtype]

    @torch.no_grad()
    def _refresh(self, dtype: torch.dtype | None) -> None:
        held = self._held.get(dtype)
        if held is None or any(_has_moved(p, *held[id(p)]) for p in self._parameters):
            held = self._held[dtype] = {}
            for p in self._parameters:
                own = p if dtype is None or p.dtype is dtype else torch.empty_like(p, dtype=dtype)
                held[id(p)] = own, own.t() if p.dim() == 2 else own
        pairs = [(held[id(p)][0], p) for p in self._parameters if held[id(p)][0] is not p]
        if pairs:
            torch._foreach_copy_([own for own, _ in pairs], [p for _, p in pairs])


def _has_moved(parameter: nn.Parameter, held: Tensor, transposed: Tensor) -> bool:
    return held.device != parameter.device or held.data_ptr() != transposed.data_ptr()
