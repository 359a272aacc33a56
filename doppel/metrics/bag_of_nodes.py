"""How many of a tree's nodes were predicted, wherever they stand."""

from __future__ import annotations

from collections import Counter

from doppel.metrics.anonymous_graph import anonymous_graph
from doppel.metrics.tree_pair_metric import Score, TreePairMetric


class BagOfNodes(TreePairMetric):
    """Precision and recall of the multiset of node names, strings hidden, averaged over turns, in [0, 1].

    ``node_precision`` and ``node_recall``. Kinder than ``ApiMatch``: a tree with all the right functions in the
    wrong places has 1 and 1.
    """

    names = ("node_precision", "node_recall")

    def score(self, predicted: str | None, gold: str) -> tuple[Score, ...]:
        """Precision and recall of one turn; 0 and 0 without a valid prediction."""
        found = anonymous_graph(predicted) if predicted is not None else None
        wanted = anonymous_graph(gold)
        if found is None or wanted is None:
            return 0.0, 0.0
        matched = (Counter(found.nodes) & Counter(wanted.nodes)).total()
        return matched / len(found.nodes), matched / len(wanted.nodes)
