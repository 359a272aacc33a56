"""Share of sampled trees that are well-formed Lispress."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from doppel.lispress import is_valid


class ValidTrees(Metric):
    """Share of trees that are valid Lispress, in [0, 1]; nan before the first tree."""

    full_state_update = False
    higher_is_better = True
    num_valid: Tensor
    num_trees: Tensor

    def __init__(self, **kwargs: Any) -> None:
        """Args: kwargs: passed to ``torchmetrics.Metric``."""
        super().__init__(**kwargs)
        self.add_state("num_valid", torch.tensor(0), dist_reduce_fx="sum")
        self.add_state("num_trees", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, trees: Sequence[str | None]) -> None:
        """Add linearised trees (None: an utterance without a tree, not counted)."""
        present = [tree for tree in trees if tree is not None]
        self.num_trees += len(present)
        self.num_valid += sum(map(is_valid, present))

    def compute(self) -> Tensor:
        """Scalar share over everything added so far."""
        return self.num_valid / self.num_trees
