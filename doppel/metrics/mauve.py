"""MAUVE between synthetic and reference utterances."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from doppel.models.encoders import TextFeaturizer

#: Different texts of both sides below which MAUVE means nothing.
_FEWEST = 3
INSTALL = "pip install --constraint constraints.txt mauve-text faiss-cpu"
Featurizer = Callable[[Sequence[str]], Tensor]


def has_mauve() -> bool:
    """Return whether the package ``mauve-text`` is there; it is under the GPL 3, and nothing installs it unasked."""
    return all(find_spec(name) is not None for name in ("mauve", "faiss"))


def judge_name(model: str | Path) -> str:
    """Return the name of a judge in ``mauve_NAME``: the last part of its model's name, such as ``gpt2_large``."""
    return re.sub(r"\W+", "_", str(model).rstrip("/").rpartition("/")[2]).strip("_").lower()


def mauve(
    synthetic: Sequence[str], reference: Sequence[str], featurizer: str | Path | Featurizer, seed: int = 25
) -> float:
    """Compute MAUVE (Pillutla et al. 2021) with the package ``mauve-text``, on features of our own.

    The package's defaults: buckets = samples / 10, PCA to 90 % of the variance, five k-means restarts of at
    most 500 iterations, scaling factor 5. Values depend on the featurizer and on the number of samples:
    compare only numbers with both equal. Features are sorted before clustering, so that the value does not depend on
    the order of the samples. Empty strings are left out, as ``mauve-text`` does.

    Args:
        synthetic: utterances.
        reference: likewise.
        featurizer: model folder, hub name, or a function from texts to a [num_texts, hidden] tensor.
        seed: seed of PCA and k-means.

    Returns:
        MAUVE in (0, 1], higher is better; nan where a side has no text, or both together fewer than three different
        ones, of which the package gives .75 also where they are equal.

    Raises:
        ModelError: the model cannot be loaded.
    """
    sides = [[text for text in side if text] for side in (synthetic, reference)]
    if not all(sides) or len({*sides[0], *sides[1]}) < _FEWEST:
        return float("nan")
    featurize = TextFeaturizer(featurizer) if isinstance(featurizer, str | Path) else featurizer
    ours, theirs = (_sorted(featurize(side)) for side in sides)
    # imported here: it brings faiss and scikit-learn, which the other metrics do without
    import faiss
    from mauve import compute_mauve

    num_threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(torch.get_num_threads())
    # MAUVE asks for n/10 clusters, and faiss warns below 39 points for each: the number is for that warning alone
    kmeans = partial(faiss.Kmeans, min_points_per_centroid=1)
    try:
        with patch.object(faiss, "Kmeans", kmeans):
            result = compute_mauve(
                p_features=theirs,
                q_features=ours,
                verbose=False,
                seed=seed,
            )
    finally:
        faiss.omp_set_num_threads(num_threads)
    return float(result.mauve)


def _sorted(features_ND: Tensor) -> NDArray[np.float32]:
    rows: NDArray[Any] = features_ND.cpu().numpy()
    return rows[np.lexsort(rows.T[::-1])]
