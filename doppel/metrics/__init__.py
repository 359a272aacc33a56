"""Metrics of synthetic utterances, plain functions of texts, trees and counts, and ``compare`` for all of them.

Those of a parser's accuracy are ``torchmetrics``, since a module logs them.
"""

from __future__ import annotations

from doppel.metrics.compare import Corpus, compare, compared_sides
from doppel.metrics.copies import CopyIndex, copy_shares
from doppel.metrics.faithfulness import graph_overlap, names_said
from doppel.metrics.parser_metrics import PARSER_KEYS, identical_trees, parser_metric_collection, parser_metrics
from doppel.metrics.tree_pairs import SMCALFLOW_APIS, TREEDST_APIS, ApiMatch, BagOfNodes, GraphMatch

__all__ = [
    "PARSER_KEYS",
    "SMCALFLOW_APIS",
    "TREEDST_APIS",
    "ApiMatch",
    "BagOfNodes",
    "CopyIndex",
    "Corpus",
    "GraphMatch",
    "compare",
    "compared_sides",
    "copy_shares",
    "graph_overlap",
    "identical_trees",
    "names_said",
    "parser_metric_collection",
    "parser_metrics",
]
