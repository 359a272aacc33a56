"""How alike the weights of two models are: three distances of matrices, 0 where they are the same up to a rotation.

A matrix has a row for each example (for an embedding, each word) and a column for each neuron. All three centre the
columns. Definitions as in Ding, Denain and Steinhardt (2021, *Grounding
representation similarity with statistical testing*).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from doppel.errors import DataError
from doppel.redaction.neighbours import Floats


def closeness(first: Path, second: Path) -> None:
    """How far the weights of two models are apart: CKA, PWCCA and Procrustes of each matrix, 0 where they are one.

    Args:
        first: Matrices by their names, as numpy.savez and the task next-word write them (.npz).
        second: Matrices of the same names.

    Raises:
        DataError: A file cannot be read or lacks a matrix, or two matrices cannot be compared.
    """
    own, other = _read(first), _read(second)
    if own.keys() != other.keys():
        raise DataError(f"has other matrices than {first.name}: give weights of one kind of model", about=second)
    told = {
        name: {distance.__name__: round(distance(x, other[name]), 4) for distance in (cka, pwcca, procrustes)}
        for name, x in own.items()
    }
    sys.stdout.write(f"{json.dumps(told)}\n")


def _read(path: Path) -> dict[str, NDArray[np.floating]]:
    try:
        with np.load(path, allow_pickle=False) as read:
            return dict(read)
    except (OSError, ValueError, EOFError, TypeError) as error:
        raise DataError(f"holds no matrices ({type(error).__name__}): give an .npz file", about=path) from None


def cka(x: NDArray[np.floating], y: NDArray[np.floating]) -> float:
    """1 − ‖YᵀX‖²_F / (‖XᵀX‖_F ‖YᵀY‖_F): linear centred kernel alignment (Kornblith et al., 2019), in [0, 1].

    Args:
        x: [num_rows, n].
        y: [num_rows, m].

    Raises:
        DataError: The numbers of rows differ, or a matrix has equal rows alone, or a number that is not finite.
    """
    x, y = _centred(x, y)
    return float(1 - np.linalg.norm(y.T @ x) ** 2 / (np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)))


def pwcca(x: NDArray[np.floating], y: NDArray[np.floating]) -> float:
    """1 − Σ wᵢ ρᵢ / Σ wᵢ: canonical correlations ρᵢ, weighted by how much of x they tell (Morcos et al., 2018).

    wᵢ = Σⱼ |⟨hᵢ, xⱼ⟩| over the columns xⱼ, where hᵢ is the i-th canonical variable of x, of length 1. In [0, 1]. The
    weights, and so the distance of two different matrices, change with a rotation of x, and with x and y changed over.

    Args:
        x: [num_rows, n].
        y: [num_rows, m].

    Raises:
        DataError: As for :func:`cka`.
    """
    x, y = _centred(x, y)
    own, other = _basis(x), _basis(y)
    turned, correlations, _ = np.linalg.svd(own.T @ other, full_matrices=False)
    weights = np.abs((own @ turned).T @ x).sum(1)
    return float(1 - weights @ correlations.clip(0, 1) / weights.sum())


def procrustes(x: NDArray[np.floating], y: NDArray[np.floating]) -> float:
    """‖X‖² + ‖Y‖² − 2‖XᵀY‖_*, both of Frobenius norm 1: what the best rotation leaves (Schönemann, 1966); in [0, 2].

    Args:
        x: [num_rows, n].
        y: [num_rows, m].

    Raises:
        DataError: As for :func:`cka`.
    """
    x, y = _centred(x, y)
    x, y = x / np.linalg.norm(x), y / np.linalg.norm(y)
    return float(max(0.0, 2 - 2 * np.linalg.svd(x.T @ y, compute_uv=False).sum()))


def _centred(x: NDArray[np.floating], y: NDArray[np.floating]) -> tuple[Floats, Floats]:
    """Both in float64, without the means of their columns."""
    if x.ndim != 2 or y.ndim != 2 or len(x) != len(y):
        raise DataError(f"shapes {list(x.shape)} and {list(y.shape)}: give two matrices with the same number of rows")
    made = []
    for name, values in (("the first matrix", x), ("the second matrix", y)):
        if not np.isfinite(values).all():
            raise DataError("holds a number that is not finite", about=name)
        centred = values.astype(np.float64) - values.astype(np.float64).mean(0)
        if np.linalg.norm(centred) <= 1e-12 * max(1.0, float(np.linalg.norm(values))):
            raise DataError("has equal rows alone: there is nothing to compare", about=name)
        made.append(centred)
    return made[0], made[1]


def _basis(x: Floats) -> Floats:
    """Orthonormal columns that span those of a matrix, [num_rows, rank]."""
    left, values, _ = np.linalg.svd(x, full_matrices=False)
    return left[:, values > values[0] * max(x.shape) * np.finfo(np.float64).eps]
