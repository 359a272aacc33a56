"""Trees drawn again: weights nearest to uniform with the released shares, and draws that repeat none needlessly."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.sparse import csr_matrix

from doppel.resampling import draw, matrix, pool_bins, projected_weights, tree_vector

TREES = ["(Yield (A))", "(Yield (B))", "(Yield (A :x (B)))", "(C)", '(C :name "Ana")', "(Yield"]
names = st.sampled_from(["A", "B", "C", "D"])


def features(seed: int, num_trees: int = 40, num_bins: int = 5) -> csr_matrix:
    rng = np.random.default_rng(seed)
    present = (rng.random((num_trees, num_bins)) < 0.5).astype(float)
    return csr_matrix(present / np.maximum(1.0, np.linalg.norm(present, axis=1, keepdims=True)))


def kl(weights: np.ndarray) -> float:
    return float(np.sum(weights * np.log(np.maximum(weights, 1e-300) * len(weights))))


@given(trees=st.lists(names, min_size=1, max_size=8), weights=st.dictionaries(names, st.floats(1.0, 1e4)))
def test_the_vector_of_a_tree_has_norm_one_or_none_of_the_bins(trees: list[str], weights: dict[str, float]) -> None:
    vector = tree_vector(f"(do {' '.join(f'({name})' for name in trees)})", weights)
    assert vector.keys() == set(trees) & weights.keys()
    assert not vector or math.hypot(*vector.values()) == pytest.approx(1.0)
    assert tree_vector("(broken", weights) == tree_vector(None, weights) == {}


def test_bins_are_the_types_of_the_pool_and_weigh_rare_ones_up() -> None:
    bins = pool_bins(TREES)
    assert set(bins) == {"A", "B", "C", "Yield"}  # no literals, nothing of a broken tree
    assert bins["Yield"] < bins["A"] == bins["C"] == pytest.approx(math.sqrt(6 / 2))
    assert matrix([tree_vector(tree, bins) for tree in TREES], bins).shape == (6, 4)


@settings(max_examples=25)
@given(seed=st.integers(0, 1000))
def test_shares_that_the_pool_can_have_are_met_exactly_where_there_is_no_noise(seed: int) -> None:
    vectors = features(seed)
    truth = np.random.default_rng(seed).dirichlet(np.full(40, 3.0))
    weights = projected_weights(vectors, vectors.T @ truth, variance=0.0)
    assert weights.sum() == pytest.approx(1.0)
    assert np.allclose(vectors.T @ weights, vectors.T @ truth, atol=1e-5)
    assert kl(weights) <= kl(truth) + 1e-6


def test_the_weights_are_the_nearest_to_uniform_that_a_general_solver_finds() -> None:
    vectors = features(1, num_trees=12, num_bins=3)
    target = vectors.T @ np.random.default_rng(1).dirichlet(np.full(12, 2.0))
    found = projected_weights(vectors, target, variance=0.0)
    equal = {"type": "eq", "fun": lambda w: np.append(vectors.T @ w - target, w.sum() - 1)}
    start, bounds = np.full(12, 1 / 12), [(1e-9, 1)] * 12
    general = minimize(kl, start, method="SLSQP", bounds=bounds, constraints=equal, options={"ftol": 1e-14})
    assert kl(found) == pytest.approx(kl(general.x), abs=1e-6)
    assert np.allclose(found, general.x, atol=1e-4)


def test_the_noisier_the_shares_the_nearer_the_weights_are_to_uniform() -> None:
    vectors = features(2)
    target = vectors.T @ np.random.default_rng(2).dirichlet(np.full(40, 1.0))
    found = [kl(projected_weights(vectors, target, variance)) for variance in (0.0, 1e-4, 1e-2, 1.0, 1e6, math.inf)]
    assert found[:4] == sorted(found[:4], reverse=True)
    assert found[0] > 0.01
    assert found[3] > abs(found[4]) < 1e-9
    assert found[5] == 0


def test_shares_that_no_weights_can_have_do_not_break_it() -> None:
    vectors = features(3)
    weights = projected_weights(vectors, np.array([-0.3, 1.5, 0.0, 0.2, 0.1]), variance=1e-3)
    assert np.isfinite(weights).all() and weights.sum() == pytest.approx(1.0)
    same = csr_matrix(np.ones((4, 2)))  # nothing to choose
    assert np.allclose(projected_weights(same, np.array([0.2, 3.0]), 1e-3), 0.25)


def test_noise_is_not_fitted() -> None:
    """A pool as the data are, and shares with noise alone: few trees lose or gain much."""
    rng = np.random.default_rng(4)
    vectors = features(4, num_trees=5000, num_bins=50)
    mean = np.asarray(vectors.mean(axis=0)).ravel()
    noisy = mean + 0.02 * rng.standard_normal(50)
    weights = projected_weights(vectors, noisy, variance=0.02**2)
    after = vectors.T @ weights
    assert np.linalg.norm(after - mean) < 0.6 * np.linalg.norm(noisy - mean)


@given(seed=st.integers(0, 10_000), num=st.integers(1, 60), place=st.integers(0, 30))
def test_a_tree_is_drawn_as_often_as_it_is_due_to_within_one(seed: int, num: int, place: int) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.full(31, 0.5))
    drawn = draw(weights, num, seed, order=rng.permutation(31).tolist())
    assert len(drawn) == num and drawn == sorted(drawn)
    assert abs(Counter(drawn)[place] - num * weights[place]) < 1 + 1e-9


def test_every_tree_is_drawn_in_proportion_to_its_weight() -> None:
    weights = np.array([0.1, 0.2, 0.3, 0.4])
    counts = Counter(i for seed in range(3000) for i in draw(weights, 2, seed))
    assert [counts[i] / 6000 for i in range(4)] == pytest.approx(weights.tolist(), abs=0.02)
    assert draw(weights, 2, seed=1) == draw(weights, 2, seed=1)
