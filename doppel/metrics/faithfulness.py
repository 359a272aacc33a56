"""How far an utterance says what a tree says: its quoted names, and the nearness of the utterance's own parse."""

from __future__ import annotations

import re
from collections import Counter

from doppel.lispress.expression import STRING_BODY_PATTERN
from doppel.metrics.anonymous_graph import anonymous_graph
from doppel.text.forms import one_line

#: A quoted string, but for the names of fields, which ``Path.apply`` takes and nobody says.
_NAME = re.compile(rf'(?<!Path\.apply )"({STRING_BODY_PATTERN})"', re.DOTALL)


def graph_overlap(predicted: str, gold: str) -> float:
    """Compute the Dice coefficient of nodes and edges of two anonymised graphs, in [0, 1]: 1 exactly for a match.

    0 where one of the trees is no valid Lispress.
    """
    graphs = anonymous_graph(predicted), anonymous_graph(gold)
    if graphs[0] is None or graphs[1] is None:
        return 0.0
    ours, theirs = (Counter([*graph.nodes, *graph.triples]) for graph in graphs if graph is not None)
    return 2 * (ours & theirs).total() / (ours.total() + theirs.total())


def names_said(utterance: str, tree: str) -> int:
    """Return how many of a tree's quoted names the utterance holds, whatever their case.

    Nearly all are said verbatim: 99.5 % of the 970 in the published validation turns of SMCalFlow.
    """
    said, names = one_line(utterance), _NAME.findall(tree)
    return sum(one_line(name) in said for name in names)
