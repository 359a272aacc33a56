"""Distances of weights: 0 for what is one up to a rotation, and the numbers of independent formulas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import procrustes as of_scipy
from sklearn.cross_decomposition import CCA

from doppel.errors import DataError
from studies.redaction.closeness import cka, procrustes, pwcca

ALL = [cka, pwcca, procrustes]


def matrices(seed: int, columns: tuple[int, int] = (4, 4)) -> tuple[np.ndarray, np.ndarray]:
    """Two matrices that are a little alike."""
    rng = np.random.default_rng(seed)
    x, noise = rng.standard_normal((60, columns[0])), rng.standard_normal((60, columns[1]))
    return x, x @ rng.standard_normal(columns) + noise


@settings(max_examples=20, derandomize=True)
@given(seed=st.integers(0, 999), scale=st.floats(0.01, 100), step=st.floats(-10, 10))
@pytest.mark.parametrize("distance", ALL)
def test_no_rotation_scale_or_translation_matters(distance, seed: int, scale: float, step: float) -> None:
    x, y = matrices(seed)
    turn = np.linalg.qr(np.random.default_rng(seed).standard_normal((4, 4)))[0]
    assert distance(x, scale * x @ turn + step) == pytest.approx(0, abs=1e-8)
    assert distance(scale * x + step, y @ turn) == pytest.approx(distance(x, y), abs=1e-8)
    assert 0 < distance(x, y) <= 2


@pytest.mark.parametrize("distance", ALL)
def test_what_has_nothing_in_common_is_farther_than_what_has(distance) -> None:
    x, y = matrices(3)
    assert distance(x, y) < distance(x, np.random.default_rng(9).standard_normal((60, 4)))
    assert distance(x, y[:, :3]) > 0, "widths may differ"


@pytest.mark.parametrize("seed", range(3))
def test_alignment_of_kernels(seed: int) -> None:
    """As the normalised HSIC of the kernels of rows."""
    x, y = matrices(seed, (4, 6))
    centre = np.eye(60) - 1 / 60
    k, m = centre @ x @ x.T @ centre, centre @ y @ y.T @ centre
    expected = 1 - np.trace(k @ m) / np.sqrt(np.trace(k @ k) * np.trace(m @ m))
    assert cka(x, y) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(3))
def test_canonical_correlations(seed: int) -> None:
    """With the canonical variables of scikit-learn."""
    x, y = matrices(seed)
    x, y = x - x.mean(0), y - y.mean(0)
    ours, theirs = CCA(4, scale=False, max_iter=10_000, tol=1e-12).fit_transform(x, y)
    correlations = [abs(np.corrcoef(h, g)[0, 1]) for h, g in zip(ours.T, theirs.T, strict=True)]
    weights = np.abs((ours / np.linalg.norm(ours, axis=0)).T @ x).sum(1)
    assert pwcca(x, y) == pytest.approx(1 - weights @ correlations / weights.sum(), abs=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_the_best_rotation(seed: int) -> None:
    """SciPy's disparity scales one matrix too: 1 − ν², where ν is half of what the distance lacks of 2."""
    x, y = matrices(seed)
    _, _, disparity = of_scipy(x, y)
    assert 1 - (1 - procrustes(x, y) / 2) ** 2 == pytest.approx(disparity)


@pytest.mark.parametrize("distance", ALL)
def test_what_cannot_be_compared_is_told(distance) -> None:
    x, y = matrices(0)
    with pytest.raises(DataError, match="same number of rows"):
        distance(x, y[:9])
    with pytest.raises(DataError, match="second matrix: has equal rows"):
        distance(x, np.ones((60, 2)))
    with pytest.raises(DataError, match="first matrix: holds a number"):
        distance(np.full((60, 2), np.nan), y)
