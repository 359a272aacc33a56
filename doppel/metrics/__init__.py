"""Metrics of synthetic utterances, each a ``torchmetrics.Metric``, and ``compare`` for all of them."""

from __future__ import annotations

from doppel.metrics.compare import Corpus, compare, compared_sides
from doppel.metrics.copies import Copies, CopyIndex
from doppel.metrics.faithfulness import graph_overlap, names_said
from doppel.metrics.function_types import ChiSquare, FunctionOverlap, TopKOverlap
from doppel.metrics.mauve import Mauve
from doppel.metrics.parser_metrics import PARSER_KEYS, identical_trees, parser_metric_collection, parser_metrics
from doppel.metrics.text_featurizer import FeaturizerError, TextFeaturizer
from doppel.metrics.texts import Commonest, Distinct, MeanWords, ValidTrees
from doppel.metrics.tree_pairs import SMCALFLOW_APIS, TREEDST_APIS, ApiMatch, BagOfNodes, GraphMatch
from doppel.metrics.type_counts import WordOverlap

__all__ = [
    "PARSER_KEYS",
    "SMCALFLOW_APIS",
    "TREEDST_APIS",
    "ApiMatch",
    "BagOfNodes",
    "ChiSquare",
    "Commonest",
    "Copies",
    "CopyIndex",
    "Corpus",
    "Distinct",
    "FeaturizerError",
    "FunctionOverlap",
    "GraphMatch",
    "Mauve",
    "MeanWords",
    "TextFeaturizer",
    "TopKOverlap",
    "ValidTrees",
    "WordOverlap",
    "compare",
    "compared_sides",
    "graph_overlap",
    "names_said",
    "identical_trees",
    "parser_metric_collection",
    "parser_metrics",
]
