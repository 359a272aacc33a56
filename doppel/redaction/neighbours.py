"""The nearest neighbours of vectors in each of two sets, each distinct vector once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from doppel.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]

#: Numbers that one block of distances may hold: 64 MB in float32.
_BLOCK = 1 << 24


@dataclass(frozen=True)
class Distinct:
    """Two sets of vectors, each distinct vector once.

    Attributes:
        vectors: float32 [num_distinct, d].
        counts: How often each is in either set, [2, num_distinct].
    """

    vectors: NDArray[np.float32]
    counts: Whole

    @property
    def repeats(self) -> NDArray[np.bool_]:
        """Which vectors occur more than once in both sets together: a density has no such values. [num_distinct]."""
        return self.counts.sum(0) > 1


def distinct(a: NDArray[np.floating], b: NDArray[np.floating]) -> Distinct:
    """Count how often each vector is in each of two sets; equal is what is equal in float32.

    Args:
        a: [num_a, d].
        b: [num_b, d].

    Raises:
        DataError: A set has no vector, the vectors have different lengths, or a number is not finite.
    """
    for name, rows in (("the first set", a), ("the second set", b)):
        if rows.ndim != 2 or not rows.size:
            raise DataError(f"has the shape {list(rows.shape)}: give a row for each text, [num_rows, d]", about=name)
        if not np.isfinite(rows).all():
            raise DataError("holds a number that is not finite: leave out the rows without a vector", about=name)
    if a.shape[1] != b.shape[1]:
        raise DataError(f"vectors of {a.shape[1]} and of {b.shape[1]} numbers: both sets need the same encoder")
    rows = np.ascontiguousarray(np.concatenate([a, b]), dtype=np.float32) + np.float32(0)  # -0 and 0 are one number
    as_bytes = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).ravel()
    _, first, place = np.unique(as_bytes, return_index=True, return_inverse=True)
    counts = [np.bincount(part, minlength=len(first)) for part in np.split(place.ravel(), [len(a)])]
    return Distinct(rows[first], np.stack(counts))


@dataclass(frozen=True)
class Neighbours:
    """The nearest points of both sets to each point, in one list.

    Attributes:
        places: Their places, nearest first, [num_points, L].
        distances: Euclidean, inf behind the end of a list that is shorter, [num_points, L].
        complete: Up to which distance a list lacks no point of either set, [num_points].
    """

    places: Whole
    distances: Floats
    complete: Floats


def neighbours(
    points: NDArray[np.float32], is_first: NDArray[np.bool_], num: int, progress: bool = False
) -> Neighbours:
    """Return the ``num`` nearest points of either set to each point, itself excluded, by comparing all with all.

    The candidates are found by blocked products of matrices in float32, on centred points. Their distances are then
    computed from differences, for the difference of large squares loses what small distances differ by.

    Args:
        points: [num_points, d].
        is_first: Which of them are of the first set; the others are of the second.
        num: Neighbours of each set.
        progress: Show a bar.
    """
    import torch  # by those who measure alone: help is there at once

    whole = torch.from_numpy(points)
    x = whole - whole.mean(0)  # which may make two points one
    own = torch.from_numpy(np.arange(len(points)))
    squares = (x * x).sum(1)
    sides = [own[torch.from_numpy(mask)] for mask in (is_first, ~is_first)]
    kept = [min(num, len(side)) for side in sides]
    places = torch.empty(len(x), sum(kept), dtype=torch.int64)
    distances = torch.empty(len(x), sum(kept), dtype=torch.float64)
    complete = torch.full((len(x),), torch.inf, dtype=torch.float64)
    rows = max(1, _BLOCK // max(map(len, sides)))
    blocks = range(0, len(x), rows)
    for start in tqdm(blocks, "neighbours", disable=None if progress else True, leave=False):
        block = slice(start, start + rows)
        begin = 0
        for side, size in zip(sides, kept, strict=True):
            end = begin + size
            squared = torch.addmm(squares[side], x[block], x[side].T, alpha=-2)
            at = torch.searchsorted(side, own[block].contiguous()).clamp(max=len(side) - 1)
            itself = (side[at] == own[block]).nonzero()[:, 0]
            squared[itself, at[itself]] = torch.inf
            found, column = squared.topk(size, 1, largest=False)
            places[block, begin:end] = side[column]
            distances[block, begin:end] = _apart(whole, own[block], side[column]).masked_fill_(found.isinf(), torch.inf)
            if size < len(side):
                complete[block] = torch.minimum(complete[block], distances[block, begin:end].amax(1))
            begin = end
    distances, order = distances.sort(dim=1, stable=True)
    return Neighbours(places.gather(1, order).numpy(), distances.numpy(), complete.numpy())


def intrinsic_dimension(near: Neighbours, is_first: NDArray[np.bool_], k: int, num_coordinates: int) -> float:
    """Estimate the power of the radius with which a ball's number of points grows, at most that of coordinates.

    Levina and Bickel (2004, *Maximum likelihood estimation of intrinsic dimension*), with the mean over points taken of
    the inverse. Vectors of sentences have hundreds of coordinates and fill some ten dimensions: a density whose balls
    grow with the 384-th power of their radius tells two halves of one set apart by 60 nats.

    Args:
        near: Neighbours of all points.
        is_first: Which points are of the first set; each is compared with its own set.
        k: Neighbours that are used; fewer than 3 say nothing, and then it is the number of coordinates.
        num_coordinates: Of a point.
    """
    if k < 3:
        return float(num_coordinates)
    is_own = is_first[near.places] == is_first[:, None]
    radii = np.sort(np.where(is_own, near.distances, np.inf), 1)[:, :k]
    inverse = np.log(radii[:, -1:] / radii[:, :-1]).sum(1) / (k - 2)
    return float(min(num_coordinates, 1 / max(inverse.mean(), 1 / num_coordinates)))


def _apart(x: Tensor, rows: Tensor, others: Tensor) -> Tensor:
    """Distances of rows [n] from others [n, L] each, in float64."""
    import torch

    step = max(1, _BLOCK // (8 * max(1, others.shape[1]) * x.shape[1]))
    pairs = zip(rows.split(step), others.split(step), strict=True)
    return torch.cat([torch.linalg.vector_norm(x[part][:, None] - x[far], dim=2).double() for part, far in pairs])
