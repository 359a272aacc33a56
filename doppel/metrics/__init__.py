"""Metrics of synthetic utterances, one ``torchmetrics.Metric`` a file, and ``compare`` for all of them."""

from __future__ import annotations

from doppel.metrics.api_match import SMCALFLOW_APIS, TREEDST_APIS, ApiMatch
from doppel.metrics.bag_of_nodes import BagOfNodes
from doppel.metrics.chi_square import ChiSquare
from doppel.metrics.commonest import Commonest
from doppel.metrics.compare import Corpus, compare, compared_sides
from doppel.metrics.copies import Copies, CopyIndex
from doppel.metrics.distinct import Distinct
from doppel.metrics.function_overlap import FunctionOverlap
from doppel.metrics.graph_match import GraphMatch
from doppel.metrics.mauve import Mauve
from doppel.metrics.mean_words import MeanWords
from doppel.metrics.nearest_trees import NearestTrees
from doppel.metrics.parser_metrics import PARSER_KEYS, parser_metric_collection, parser_metrics
from doppel.metrics.text_featurizer import FeaturizerError, TextFeaturizer
from doppel.metrics.top_k_overlap import TopKOverlap
from doppel.metrics.valid_trees import ValidTrees
from doppel.metrics.word_overlap import WordOverlap

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
    "NearestTrees",
    "TextFeaturizer",
    "TopKOverlap",
    "ValidTrees",
    "WordOverlap",
    "compare",
    "compared_sides",
    "parser_metric_collection",
    "parser_metrics",
]
