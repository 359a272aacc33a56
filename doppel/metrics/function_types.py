"""Metrics over the function types of parse trees: overlap, χ² and top-k overlap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from doppel.lispress import Counting, valid_function_types
from doppel.metrics.type_counts import TypeCountMetric, type_overlap


def count_function_types(trees: Iterable[str | None], counting: Counting) -> Counter[str]:
    """Occurrences of function types over the valid trees; absent (None) and invalid trees count nothing."""
    total: Counter[str] = Counter()
    for tree in trees:
        total.update((valid_function_types(tree, counting) if tree is not None else None) or ())
    return total


class FunctionTypeMetric(TypeCountMetric):
    """Counts function types of synthetic and reference trees; invalid trees are left out of every count.

    ``ValidTrees`` reports how many were left out.

    Args:
        counting: what a function type is: ``node_labels`` (labels of the graph, literals and let-variables left out) or
            ``call_heads``.
        kwargs: passed to ``torchmetrics.Metric``.
    """

    def __init__(self, counting: Counting = "node_labels", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.counting: Counting = counting

    def update(self, synthetic: Sequence[str | None] = (), reference: Sequence[str | None] = ()) -> None:
        """Add parse trees to either side (None: an utterance without a tree)."""
        self.add_counts("synthetic", count_function_types(synthetic, self.counting))
        self.add_counts("reference", count_function_types(reference, self.counting))


class FunctionOverlap(FunctionTypeMetric):
    """F.Overlap = |F_syn ∩ F_hum| / |F_hum| over function types (Mireshghallah et al., 2023), in [0, 1].

    It grows with the number of samples: compare systems on equally many. nan without a reference.
    """

    higher_is_better = True

    def compute(self) -> Tensor:
        """Scalar share over everything added so far."""
        return torch.tensor(type_overlap(self.counts("synthetic"), self.counts("reference")))


class ChiSquare(FunctionTypeMetric):
    """χ² distance ½ Σ (p−q)² / (p+q) over function-type frequencies (Mireshghallah et al., 2023), in [0, 1].

    0 means equal distributions. Two samples of one distribution differ by chance, the more the fewer they
    are: random halves of 11,771 SMCalFlow turns are 0.0038 apart. nan where a side has no valid tree.
    """

    higher_is_better = False

    def compute(self) -> Tensor:
        """Scalar distance over everything added so far."""
        return torch.tensor(chi_square_distance(self.counts("synthetic"), self.counts("reference")))


def chi_square_distance(synthetic: Counter[str], reference: Counter[str]) -> float:
    """½ Σ (p−q)² / (p+q) over the types of either side, p and q their relative frequencies.

    Returns:
        0 for equal distributions, 1 for disjoint ones, nan where a side is empty.
    """
    num_synthetic, num_reference = synthetic.total(), reference.total()
    if not num_synthetic or not num_reference:
        return float("nan")
    distance = 0.0
    for name in sorted(synthetic.keys() | reference.keys()):
        p, q = synthetic[name] / num_synthetic, reference[name] / num_reference
        distance += (p - q) ** 2 / (p + q)
    return distance / 2


class TopKOverlap(FunctionTypeMetric):
    """|top-k(reference) ∩ top-k(synthetic)| / k over function types (Mireshghallah et al., 2023), in [0, 1].

    The divisor stays k where the reference has fewer than k types. nan without a reference.

    Args:
        k: how many of the most frequent types are compared.
        counting: what a function type is, ``node_labels`` or ``call_heads``.
        kwargs: passed to ``torchmetrics.Metric``.

    Raises:
        ValueError: k is not positive.
    """

    higher_is_better = True

    def __init__(self, k: int = 25, counting: Counting = "node_labels", **kwargs: Any) -> None:
        if k < 1:
            raise ValueError(f"top-k overlap needs k >= 1, got k={k}")
        super().__init__(counting, **kwargs)
        self.k = k

    def compute(self) -> Tensor:
        """Scalar share over everything added so far."""
        synthetic, reference = self.counts("synthetic"), self.counts("reference")
        if not reference:
            return torch.tensor(float("nan"))
        return torch.tensor(len(top_k(synthetic, self.k) & top_k(reference, self.k)) / self.k)


def top_k(counts: Counter[str], k: int) -> set[str]:
    """The k most frequent types; equal counts are ordered by name, so input order does not matter."""
    return {name for name, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:k]}
