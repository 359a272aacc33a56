"""Samples of a private model drawn again, so that functions occur in them as often as a noised histogram says.

DP-SGD learns how things are said sooner than how often. So the model writes many more trees than are wanted (the
pool), the shares of function types are released once with noise (`doppel.privacy.histogram`), and trees are drawn from
the pool with weights that are as near to uniform, in KL, as those shares allow: an I-projection (Csiszár, 1975; Wang et
al., NeurIPS 2023, arXiv 2305.15538, do it with log-linear weights too; CTCL, arXiv 2503.12347, and ACTG-ARL, arXiv
2510.18232, steer text generation by released marginals).

Formal guarantees:
    Nothing here sees private data: the pool is post-processing of a private model, the shares of a Gaussian mechanism
    in the ledger, and what is made of them of both. `tree_vector` is also the vector whose sum is released. It is a
    function of one tree and of public bins, of L2 norm at most 1, which `unit_sums` enforces by itself.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.sparse import csr_matrix

from doppel.lispress import valid_function_types

Floats = NDArray[np.float64]


def pool_bins(pool: Sequence[str]) -> dict[str, float]:
    """Return the function types of a pool, each with its weight 1/√(share of the trees that have it).

    The weights let rare types be told from the noise, which is equal on all bins. They come from the pool, hence from
    the private model, never from the private data.
    """
    counts = Counter(name for tree in pool for name in set(valid_function_types(tree, "node_labels") or ()))
    return {name: math.sqrt(len(pool) / count) for name, count in sorted(counts.items())}


def tree_vector(tree: str | None, bins: Mapping[str, float]) -> dict[str, float]:
    """Return the weighted bins that a tree has, scaled to L2 norm 1.

    Args:
        tree: Lispress; nothing for None and for a tree that is not well-formed.
        bins: Weight of each function type; types without a weight are left out.

    Returns:
        Entries by function type; empty where the tree has none of the bins.
    """
    types = (None if tree is None else valid_function_types(tree, "node_labels")) or ()
    found = {name: bins[name] for name in types if name in bins}
    norm = math.hypot(*found.values())
    return {name: weight / norm for name, weight in found.items()}


def matrix(vectors: Sequence[Mapping[str, float]], bins: Mapping[str, float]) -> csr_matrix:
    """Return entries by bin as rows, [vectors, bins]."""
    place = {name: i for i, name in enumerate(bins)}
    entries = [(i, place[name], value) for i, vector in enumerate(vectors) for name, value in vector.items()]
    rows, columns, values = zip(*entries, strict=True) if entries else ((), (), ())
    return csr_matrix((values, (rows, columns)), shape=(len(vectors), len(bins)), dtype=np.float64)


def projected_weights(vectors_MK: csr_matrix, targets_K: Floats, variance: float, spread: float = 1.0) -> Floats:
    """Return weights of a pool, nearest in KL to uniform, whose expectations match the targets up to noise.

    Of all weights with given expectations those nearest to uniform are w_i ∝ exp(λ·φ_i). λ maximises the concave dual

        λ·t − log mean_i exp(λ·φ_i) − ½ (s²/τ²) λᵀC⁺λ,

    where C is the covariance of φ over the pool. To first order this is the posterior mean of λ under λ ~ N(0, τ²I)
    when t has noise N(0, s²I): what the pool can hardly vary, or the noise drowns, is left as the pool has it. Without
    noise the expectations are the targets, if any weights reach them; with infinite noise the weights are uniform.

    Args:
        vectors_MK: φ of each tree of the pool.
        targets_K: t, the expectations as released.
        variance: s² of each target, above 0 unless the pool can reach the targets.
        spread: τ, how far (in nats) a model is expected to miss the frequency of a tree; public.

    Returns:
        Weights that sum to 1, [M].
    """
    num_trees = vectors_MK.shape[0]
    mean_K = np.asarray(vectors_MK.mean(axis=0)).ravel()
    covariance_KK = (vectors_MK.T @ vectors_MK).toarray() / num_trees - np.outer(mean_K, mean_K)
    eigenvalues, directions = np.linalg.eigh(covariance_KK)
    kept = eigenvalues > 1e-12
    if not kept.any() or math.isinf(variance):
        return np.full(num_trees, 1 / num_trees)
    ridge = variance / spread**2 / eigenvalues[kept]
    curvature = eigenvalues[kept] + ridge
    basis = directions[:, kept] / np.sqrt(curvature)  # the dual's Hessian at 0 is the identity in these coordinates
    ridge = ridge / curvature

    def tilt(z: Floats) -> tuple[float, Floats]:
        scores = vectors_MK @ (basis @ z)
        top = scores.max()
        weights = np.exp(scores - top)
        return float(top + math.log(weights.mean())), weights / weights.sum()

    def dual(z: Floats) -> tuple[float, Floats]:
        log_mean, weights = tilt(z)
        gap = vectors_MK.T @ weights - targets_K
        return float(log_mean - z @ (basis.T @ targets_K) + ridge @ z**2 / 2), basis.T @ gap + ridge * z

    solved = minimize(dual, np.zeros(kept.sum()), jac=True, method="L-BFGS-B", options={"ftol": 1e-13, "gtol": 1e-8})
    return tilt(solved.x)[1]


def share_weights(
    vectors_MK: csr_matrix, sums: Sequence[float], num_units: int, sigma: float | None
) -> tuple[Floats, Floats, float]:
    """Weights of a pool by the released sums of private vectors: post-processing of these and of the pool.

    Args:
        vectors_MK: φ of each tree of the pool.
        sums: Of the N private vectors, as released, one a bin.
        num_units: N.
        sigma: Standard deviation of their noise; None without.

    Returns:
        The weights, the expectations that they aim at, and the variance of each: the noise, and chance (N unit vectors
        of norm 1 over K bins).
    """
    targets_K = np.array(sums) / num_units
    variance = ((sigma or 0.0) ** 2 + num_units / len(targets_K)) / num_units**2
    return projected_weights(vectors_MK, targets_K, variance), targets_K, variance


def draw(weights_M: Floats, num_samples: int, seed: int | None = None, order: Sequence[int] | None = None) -> list[int]:
    """Draw by systematic sampling: tree i ⌊n·w_i⌋ or ⌈n·w_i⌉ times, n·w_i on average.

    So no tree is drawn twice whose weight is at most 1/n, and trees that are neighbours in the order share what they
    are due, which keeps the shares of rare kinds from varying by chance.

    Args:
        weights_M: Weights that sum to 1.
        num_samples: n.
        seed: Of the one random number.
        order: Permutation of the trees in which they are passed; None: as they are.

    Returns:
        Places of the drawn trees in the pool, rising.
    """
    passed = np.arange(len(weights_M)) if order is None else np.asarray(order)
    ends = np.cumsum(weights_M[passed])
    points = (np.random.default_rng(seed).random() + np.arange(num_samples)) / num_samples * ends[-1]
    return sorted(passed[np.searchsorted(ends, points, side="right").clip(max=len(ends) - 1)].tolist())
