"""Base of the metrics that compare predicted trees with gold ones, turn by turn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric

from doppel.lispress import uses_function
from doppel.metrics.anonymous_graph import anonymous_graph

Score = float | None
"""A turn's value, or None where the turn does not count for it."""


class TreePairMetric(Metric, ABC):
    """Means over turns, over all of them and over the turns with and without given functions.

    The gold tree alone decides what functions a turn has. States are sums, so ranks may see any share of the
    turns (a turn that two ranks see counts twice).
    """

    full_state_update = False
    higher_is_better = True
    names: ClassVar[tuple[str, ...]]
    """Names of the values that ``score`` returns."""

    sums: Tensor
    counts: Tensor

    def __init__(self, functions: Sequence[str] | None = None, **kwargs: Any) -> None:
        """Set the functions to tell apart.

        Args:
            functions: patterns as in ``uses_function``: ``WeatherQueryApi``, ``EventOnDate*``.
            kwargs: passed to ``torchmetrics.Metric``.

        Raises:
            ValueError: one of them is no pattern.
        """
        super().__init__(**kwargs)
        self.functions = tuple(dict.fromkeys(functions or ()))
        for pattern in self.functions:
            uses_function(None, pattern)
        self.suffixes = ("", *(f"{sign}{pattern}" for pattern in self.functions for sign in ("@", "@not ")))
        zeros = torch.zeros(len(self.suffixes), len(self.names), dtype=torch.float64)
        self.add_state("sums", zeros, dist_reduce_fx="sum")
        self.add_state("counts", zeros.clone(), dist_reduce_fx="sum")

    @abstractmethod
    def score(self, predicted: str | None, gold: str) -> tuple[Score, ...]:
        """Values of one turn, one for each of ``names``; a prediction that is None or no Lispress is wrong."""

    def update(self, predicted: Sequence[str | None], gold: Sequence[str]) -> None:
        """Add turns.

        Args:
            predicted: linearised trees, None where there is none.
            gold: the true trees of the same turns.

        Raises:
            ValueError: the sides differ in length, or a gold tree is no valid Lispress.
        """
        if len(predicted) != len(gold):
            raise ValueError(f"{len(predicted)} predicted trees but {len(gold)} gold trees")
        if not gold:
            return
        for number, tree in enumerate(gold):
            if anonymous_graph(tree) is None:
                raise ValueError(f"gold tree {number} of the batch is no valid Lispress: only predictions may be wrong")
        scores = [self.score(guess, tree) for guess, tree in zip(predicted, gold, strict=True)]
        values = torch.tensor([[0.0 if s is None else s for s in row] for row in scores], dtype=torch.float64)
        present = torch.tensor([[s is not None for s in row] for row in scores], dtype=torch.float64)
        members = [[1.0] * len(gold)]
        for pattern in self.functions:
            uses = [float(uses_function(tree, pattern)) for tree in gold]
            members += [uses, [1 - use for use in uses]]
        membership = torch.tensor(members, dtype=torch.float64)  # [groups, turns]
        self.sums += (membership @ values).to(self.sums.device)
        self.counts += (membership @ present).to(self.counts.device)

    def compute(self) -> dict[str, Tensor]:
        """Means by name, then by name and ``@PATTERN`` or ``@not PATTERN``; nan where no turn counts."""
        means = self.sums / self.counts
        return {
            f"{name}{suffix}": means[row, column]
            for row, suffix in enumerate(self.suffixes)
            for column, name in enumerate(self.names)
        }
