"""Base of the metrics over function types of parse trees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from doppel.lispress import Counting, valid_function_types
from doppel.metrics.type_counts import TypeCountMetric

Weighting = Literal["occurrences", "turns"]


def count_function_types(trees: Iterable[str | None], counting: Counting, weighting: Weighting) -> Counter[str]:
    """Occurrences of function types over the valid trees; absent (None) and invalid trees count nothing.

    Args:
        trees: linearised Lispress.
        counting: ``node_labels`` (labels of the graph, literals and let-variables left out) or
            ``call_heads``.
        weighting: ``occurrences`` counts a type as often as it stands in a tree, ``turns`` once a tree.
    """
    total: Counter[str] = Counter()
    for tree in trees:
        types = valid_function_types(tree, counting) if tree is not None else None
        if types is not None:
            total.update(types if weighting == "occurrences" else set(types))
    return total


class FunctionTypeMetric(TypeCountMetric):
    """Counts function types of synthetic and reference trees; invalid trees are left out of every count.

    ``ValidTrees`` reports how many were left out.
    """

    def __init__(self, counting: Counting = "node_labels", weighting: Weighting = "occurrences", **kwargs: Any) -> None:
        """Set what is counted.

        Args:
            counting: what a function type is, ``node_labels`` or ``call_heads``.
            weighting: count every occurrence in a tree (``occurrences``) or each type once a tree
                (``turns``).
            kwargs: passed to ``torchmetrics.Metric``.
        """
        super().__init__(**kwargs)
        self.counting: Counting = counting
        self.weighting: Weighting = weighting

    def update(self, synthetic: Sequence[str | None] = (), reference: Sequence[str | None] = ()) -> None:
        """Add parse trees to either side (None: an utterance without a tree)."""
        self.add_counts("synthetic", count_function_types(synthetic, self.counting, self.weighting))
        self.add_counts("reference", count_function_types(reference, self.counting, self.weighting))
