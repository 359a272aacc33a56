"""Units' gradients that are formed, side by side: norms and sums are one operation for many parameters."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict

import torch
from torch import Tensor, nn

from doppel.privacy.clipping.arithmetic import gradient_of, wide_dtype
from doppel.privacy.clipping.groups import part_size

#: Squares of so many numbers are summed in the wide dtype, and these sums in float64.
_PIECE = 256


class FormedPart:
    """Units' gradients of some parameters, [U, P], in the wide dtype.

    What is clipped is what the norm was taken of, so that nothing needs room but the rounding of the squares.

    Args:
        parameters: Of one dtype and device.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = sorted(parameters, key=lambda p: p.shape)
        self._kinds = Counter(p.shape for p in self.parameters)
        self._sizes = [num * shape.numel() for shape, num in self._kinds.items()]
        self._sizes.append(-sum(self._sizes) % _PIECE)  # zeros
        self.clear()

    def clear(self) -> None:
        """Free everything."""
        self.gradients: Tensor | None = None
        self._places: dict[int, Tensor] = {}

    def place(self, parameter: nn.Parameter, num_units: int) -> Tensor:
        """Return where the gradients of so many units U are written to, [U, \\*shape]: all of them, and once."""
        if self.gradients is None:
            shape, dtype = (num_units, sum(self._sizes)), wide_dtype(parameter.dtype)
            self.gradients = torch.empty(shape, dtype=dtype, device=parameter.device)
            if self._sizes[-1]:
                self.gradients[:, -self._sizes[-1] :].zero_()
            self._places = dict(zip(map(id, self.parameters), self._views(self.gradients), strict=True))
        return self._places.pop(id(parameter))

    @property
    def reached(self) -> list[nn.Parameter]:
        """Parameters whose gradients are there."""
        return [p for p in self.parameters if id(p) not in self._places]

    def squares(self) -> Tensor:
        """Return the squared norms, [U], in float64.

        In any order, and with their root and its square, they lose at most 272 units of rounding of their sum; nothing
        cancels.
        """
        assert self.gradients is not None
        if self._places:
            torch._foreach_zero_(list(self._places.values()))
        pieces = self.gradients.unflatten(1, (-1, _PIECE))
        return torch.linalg.vector_norm(pieces, dim=2).square_().sum(1, dtype=torch.float64)

    def add(self, weights: Tensor, erased: Tensor | None) -> None:
        """Add Σᵢ weightsᵢ gᵢ to each ``grad``; ``erased`` marks units that are not finite, for 0 · nan is nan."""
        assert self.gradients is not None
        if erased is not None:
            self.gradients.masked_fill_(erased.unsqueeze(1), 0.0)
        sums = self._views(weights.to(self.gradients.dtype) @ self.gradients)
        pairs = [(gradient_of(p), x) for p, x in zip(self.parameters, sums, strict=True) if id(p) not in self._places]
        torch._foreach_add_([grad for grad, _ in pairs], [x for _, x in pairs])
        self.clear()

    def _views(self, flat: Tensor) -> list[Tensor]:
        """[…, P] as […, \\*shape] for each parameter: those of one shape are one block."""
        blocks = zip(self._kinds.items(), flat.split(self._sizes, -1), strict=False)
        return [x for (shape, num), block in blocks for x in block.unflatten(-1, (num, *shape)).unbind(flat.dim() - 1)]


class FormedGradients:
    """All formed gradients of one capture after another, in parts of a budget that fill as the backward pass goes.

    Args:
        parameters: In the order of the forward pass.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self._parameters = parameters[::-1]
        self._parts_for = functools.cache(self._find_parts)
        self.parts: list[FormedPart] = []  # that have gradients

    def place(self, parameter: nn.Parameter, num_units: int) -> Tensor:
        """Return where the gradients of so many units U are written to, [U, \\*shape]."""
        part = self._parts_for(num_units)[id(parameter)]
        if part.gradients is None:
            self.parts.append(part)
        return part.place(parameter, num_units)

    def clear(self) -> None:
        """Free everything."""
        for part in self.parts:
            part.clear()
        self.parts = []

    def _find_parts(self, num_units: int) -> dict[int, FormedPart]:
        """The part of each parameter, by its id."""
        parts: dict[object, list[nn.Parameter]] = defaultdict(list)
        numbers: Counter[object] = Counter()
        for p in self._parameters:
            kind = p.dtype, p.device
            numbers[kind] += p.numel()
            size = part_size(num_units * wide_dtype(p.dtype).itemsize, 2**63, p.is_cuda)
            parts[kind, numbers[kind] // size].append(p)
        return {id(p): part for part in map(FormedPart, parts.values()) for p in part.parameters}
