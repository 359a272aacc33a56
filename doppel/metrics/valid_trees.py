"""Share of sampled trees that are well-formed Lispress."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torchmetrics import MeanMetric

from doppel.lispress import is_valid


class ValidTrees(MeanMetric):
    """Share of trees that are valid Lispress, in [0, 1]; nan before the first tree."""

    higher_is_better = True  # type: ignore[assignment]

    def update(self, trees: Sequence[str | None]) -> None:  # type: ignore[override]
        """Add linearised trees (None: an utterance without a tree, not counted)."""
        super().update(torch.tensor([float(is_valid(tree)) for tree in trees if tree is not None]))
