"""χ² distance between the function-type distributions of synthetic and reference trees."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor

from doppel.lispress import Counting
from doppel.metrics.function_type_metric import FunctionTypeMetric, Weighting


def chi_square_distance(synthetic: Counter[str], reference: Counter[str], halved: bool = True) -> float:
    """½ Σ (p−q)² / (p+q) over the types of either side, p and q their relative frequencies.

    Returns:
        0 for equal distributions, 1 (2 without ½) for disjoint ones, nan where a side is empty.
    """
    num_synthetic, num_reference = synthetic.total(), reference.total()
    if not num_synthetic or not num_reference:
        return float("nan")
    distance = 0.0
    for name in sorted(synthetic.keys() | reference.keys()):
        p, q = synthetic[name] / num_synthetic, reference[name] / num_reference
        distance += (p - q) ** 2 / (p + q)
    return distance / 2 if halved else distance


class ChiSquare(FunctionTypeMetric):
    """χ² distance ½ Σ (p−q)² / (p+q) over function-type frequencies (Mireshghallah et al.), in [0, 1].

    0 means equal distributions. Two samples of one distribution differ by chance, the more the fewer they
    are: random halves of 11,771 SMCalFlow turns are 0.0038 apart. nan where a side has no valid tree.
    """

    higher_is_better = False

    def __init__(
        self,
        counting: Counting = "node_labels",
        weighting: Weighting = "occurrences",
        halved: bool = True,
        **kwargs: Any,
    ) -> None:
        """Set what is counted and scaled.

        Args:
            counting: what a function type is, ``node_labels`` or ``call_heads``.
            weighting: frequencies over all occurrences, or over (type, turn) pairs.
            halved: keep the factor ½, so that the distance lies in [0, 1].
            kwargs: passed to ``torchmetrics.Metric``.
        """
        super().__init__(counting, weighting, **kwargs)
        self.halved = halved

    def compute(self) -> Tensor:
        """Scalar distance over everything added so far."""
        return torch.tensor(chi_square_distance(self.counts("synthetic"), self.counts("reference"), self.halved))
