"""Units' gradients that are formed, side by side: norms and sums are one operation for many parameters."""

from __future__ import annotations

import functools
from collections import defaultdict

import torch
from torch import Tensor, nn

from doppel.privacy.clipping.arithmetic import gradient_of, wide_dtype
from doppel.privacy.clipping.groups import part_size

#: Squares of at most so many numbers are summed in the wide dtype, and these sums in float64.
_PIECE = 256
#: Bytes of matrices that are allocated together, on a CPU and on a GPU; others come in eight parts, as activations go.
_SMALL_CPU, _SMALL = 2**20, 2**26
#: Numbers of a matrix whose units' gradients are always formed.
_SMALL_MATRIX = 64 * 64


def is_small(weight: Tensor) -> bool:
    """Whether a matrix has so few numbers that its units' gradients are formed, whatever its shape."""
    return weight.numel() <= _SMALL_MATRIX


class FormedPart:
    """Units' gradients of matrices of one shape, [L, U, P], or of other parameters in a row, [1, U, P], and wide.

    What is clipped is what the norm was taken of, so that nothing needs room but the rounding of the squares.

    Args:
        parameters: Of one dtype and device.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self._is_stacked = parameters[0].dim() > 1 and len({p.shape for p in parameters}) == 1
        num = parameters[0].numel() if self._is_stacked else sum(p.numel() for p in parameters)
        self._num_zeros = 0 if self._is_stacked else -num % _PIECE  # a matrix with a gap behind it is slow to write to
        self._num = num + self._num_zeros
        self._piece = max(size for size in range(1, _PIECE + 1) if self._num % size == 0)
        self.clear()

    def clear(self) -> None:
        """Free everything."""
        self.gradients: Tensor | None = None
        self._places: dict[int, Tensor] = {}

    def place(self, parameter: nn.Parameter, num_units: int) -> Tensor:
        """Return where the gradients of so many units U are written to, [U, \\*shape]: all of them, and once."""
        if self.gradients is None:
            shape = len(self.parameters) if self._is_stacked else 1, num_units, self._num
            self.gradients = torch.empty(shape, dtype=wide_dtype(parameter.dtype), device=parameter.device)
            if self._num_zeros:
                self.gradients[:, :, -self._num_zeros :].zero_()
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
        pieces = self.gradients.unflatten(2, (self._num // self._piece, self._piece))
        return torch.linalg.vector_norm(pieces, dim=3).square_().sum((0, 2), dtype=torch.float64)

    def add(self, weights: Tensor, erased: Tensor | None) -> None:
        """Add Σᵢ weightsᵢ gᵢ to each ``grad``; ``erased`` marks units that are not finite, for 0 · nan is nan."""
        assert self.gradients is not None
        if erased is not None:
            self.gradients.masked_fill_(erased.unsqueeze(1), 0.0)
        weights = weights.to(self.gradients.dtype).expand(len(self.gradients), 1, -1)
        sums = zip(self.parameters, self._views(torch.bmm(weights, self.gradients).squeeze(1)), strict=True)
        pairs = [(gradient_of(p), x) for p, x in sums if id(p) not in self._places]
        torch._foreach_add_([grad for grad, _ in pairs], [x for _, x in pairs])
        self.clear()

    def _views(self, x: Tensor) -> list[Tensor]:
        """[L, …, P] as […, \\*shape] for each parameter."""
        if self._is_stacked:
            return list(x.view(*x.shape[:-1], *self.parameters[0].shape).unbind(0))
        sizes = [*(p.numel() for p in self.parameters), self._num_zeros]
        pairs = zip(x.squeeze(0).split(sizes, -1), self.parameters, strict=False)
        return [column if p.dim() == 1 else column.view(*column.shape[:-1], *p.shape) for column, p in pairs]


class FormedGradients:
    """All formed gradients of one capture after another, in parts that fill as the backward pass goes.

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
        kinds: dict[object, list[nn.Parameter]] = defaultdict(list)
        for p in self._parameters:
            kinds[p.dtype, p.device, p.shape if p.dim() > 1 else None].append(p)
        parts = []
        for alike in kinds.values():
            first, num = alike[0], len(alike)
            bytes_of_one = num_units * first.numel() * wide_dtype(first.dtype).itemsize
            if first.dim() > 1 and bytes_of_one * num > (_SMALL if first.is_cuda else _SMALL_CPU):
                num = -(-num // 8)
            size = part_size(bytes_of_one, num, first.is_cuda)
            parts += [FormedPart(alike[start : start + size]) for start in range(0, len(alike), size)]
        return {id(p): part for part in parts for p in part.parameters}
