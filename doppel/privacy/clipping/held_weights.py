"""Weights of layers that multiply, as autocast gives them, made once a step."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class HeldWeights:
    """Copies of weights in half precision, at fixed addresses.

    Autocast makes a copy anew in each forward pass of a weight that autograd does not follow: all of them in a capture.
    Here all are made by one operation for a capture, or for a step (:meth:`.clipper.PerSampleClipper.begin_step`). They
    hold what autocast's do, to the last bit.

    Args:
        parameters: Of all layers that multiply.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self._parameters = parameters
        self._held: dict[torch.dtype, dict[int, Tensor]] = {}
        self._fresh: set[torch.dtype] = set()

    def forget(self) -> None:
        """Let weights change."""
        self._fresh.clear()

    def renew(self) -> None:
        """Make anew, where they are, the copies of every dtype that was asked for: a CUDA graph asks nobody."""
        self.forget()
        for dtype in self._held:
            self.of(dtype)

    @torch.no_grad()
    def of(self, dtype: torch.dtype) -> dict[int, Tensor]:
        """Return them by the id of the parameter: itself, where it has the dtype."""
        held = self._held.setdefault(dtype, {})
        if dtype not in self._fresh:
            others: list[Tensor] = [p for p in self._parameters if p.dtype is not dtype]
            if not held or any(held[id(p)].device != p.device for p in others):
                held.update(
                    (id(p), p if p.dtype is dtype else torch.empty_like(p, dtype=dtype)) for p in self._parameters
                )
            if others:
                torch._foreach_copy_([held[id(p)] for p in others], others)
            self._fresh.add(dtype)
        return held
