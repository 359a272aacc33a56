"""MAUVE between synthetic and reference utterances."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from doppel.metrics.string_state import StringStateMetric
from doppel.metrics.text_featurizer import TextFeaturizer

Featurizer = Callable[[Sequence[str]], Tensor]


class Mauve(StringStateMetric):
    """MAUVE (Pillutla et al. 2021) as the package ``mauve-text`` computes it, on features of our own.

    The package's defaults: buckets = samples / 10, PCA to 90 % of the variance, five k-means restarts of at
    most 500 iterations, scaling factor 5. Values depend on the featurizer and on the number of samples:
    compare only numbers with both equal. Features are sorted before clustering, so that the value depends
    neither on the order of the samples nor on how ranks shared them.

    Args:
        featurizer: model folder, hub name, or a function from texts to a [num_texts, hidden] tensor.
        seed: seed of PCA and k-means.
        kwargs: passed to ``torchmetrics.Metric``.
    """

    higher_is_better = True
    num_synthetic: Tensor
    num_reference: Tensor

    def __init__(self, featurizer: str | Path | Featurizer, seed: int = 25, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.featurizer: Featurizer = TextFeaturizer(featurizer) if isinstance(featurizer, str | Path) else featurizer
        self.seed = seed
        for side in ("synthetic", "reference"):
            # flat, so that a rank without samples needs not know the features' width
            self.add_list_state(f"{side}_features", torch.float32)
            self.add_state(f"num_{side}", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, synthetic: Sequence[str] = (), reference: Sequence[str] = ()) -> None:
        """Add utterances to either side; empty strings are left out, as ``mauve-text`` does."""
        texts = [text for text in synthetic if text]
        self.num_synthetic += len(texts)
        if texts:
            self.append_state("synthetic_features", self.featurizer(texts).flatten())
        texts = [text for text in reference if text]
        self.num_reference += len(texts)
        if texts:
            self.append_state("reference_features", self.featurizer(texts).flatten())

    def _features(self, side: str) -> np.ndarray:
        rows = self.joined_state(f"{side}_features").view(int(getattr(self, f"num_{side}")), -1).cpu().numpy()
        return rows[np.lexsort(rows.T[::-1])]

    def compute(self) -> Tensor:
        """Scalar MAUVE in (0, 1], higher is better; nan where a side has no text."""
        if not int(self.num_synthetic) or not int(self.num_reference):
            return torch.tensor(float("nan"))
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
                    p_features=self._features("reference"),
                    q_features=self._features("synthetic"),
                    verbose=False,
                    seed=self.seed,
                )
        finally:
            faiss.omp_set_num_threads(num_threads)
        return torch.tensor(float(result.mauve))
