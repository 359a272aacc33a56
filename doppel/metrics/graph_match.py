"""Share of turns whose predicted tree is right: exact match of the anonymised graphs."""

from __future__ import annotations

from torch import Tensor

from doppel.metrics.anonymous_graph import anonymous_graph
from doppel.metrics.tree_pair_metric import Score, TreePairMetric


class GraphMatch(TreePairMetric):
    """Exact match of anonymised graphs (Zhou et al. 2022): ``exact_match`` in [0, 1], and ``num_turns``.

    A turn is right where the multisets of node names and of (source, label, target) names are equal, every
    string being called the same.
    """

    names = ("exact_match",)

    def score(self, predicted: str | None, gold: str) -> tuple[Score, ...]:
        """1 for a match, 0 for none."""
        return (float(predicted is not None and anonymous_graph(predicted) == anonymous_graph(gold)),)

    def compute(self) -> dict[str, Tensor]:
        """Shares of right turns by name, and the number of turns that each is taken over."""
        counts = {f"num_turns{suffix}": self.counts[row, 0].long() for row, suffix in enumerate(self.suffixes)}
        return super().compute() | counts
