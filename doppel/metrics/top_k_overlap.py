"""How many of the reference's most frequent function types are also the samples' most frequent."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor

from doppel.lispress import Counting
from doppel.metrics.function_type_metric import FunctionTypeMetric, Weighting


def top_k(counts: Counter[str], k: int) -> set[str]:
    """The k most frequent types; equal counts are ordered by name, so input order does not matter."""
    return {name for name, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:k]}


class TopKOverlap(FunctionTypeMetric):
    """|top-k(reference) ∩ top-k(synthetic)| / k over function types (Mireshghallah et al.), in [0, 1].

    The divisor stays k where the reference has fewer than k types. nan without a reference.
    """

    higher_is_better = True

    def __init__(
        self,
        k: int = 25,
        counting: Counting = "node_labels",
        weighting: Weighting = "occurrences",
        **kwargs: Any,
    ) -> None:
        """Set k and what is counted.

        Args:
            k: how many of the most frequent types are compared.
            counting: what a function type is, ``node_labels`` or ``call_heads``.
            weighting: rank by all occurrences, or by the number of turns that hold the type.
            kwargs: passed to ``torchmetrics.Metric``.

        Raises:
            ValueError: k is not positive.
        """
        if k < 1:
            raise ValueError(f"top-k overlap needs k >= 1, got k={k}")
        super().__init__(counting, weighting, **kwargs)
        self.k = k

    def compute(self) -> Tensor:
        """Scalar share over everything added so far."""
        synthetic, reference = self.counts("synthetic"), self.counts("reference")
        if not reference:
            return torch.tensor(float("nan"))
        return torch.tensor(len(top_k(synthetic, self.k) & top_k(reference, self.k)) / self.k)
