"""The metrics that compare sampled with human text, for ``test``."""

from __future__ import annotations

from torchmetrics import Metric, MetricCollection

from datamodules.turn import Field
from doppel.metrics import ChiSquare, FunctionOverlap, Mauve, TopKOverlap, WordOverlap
from doppel.metrics.compare import TOP_K


def text_metrics(target: Field, featurizer: str | None) -> MetricCollection:
    """Metrics of the texts that a model writes.

    Args:
        target: What it writes: utterances are compared by words, parse trees by function types.
        featurizer: Model whose features MAUVE compares, for utterances; None leaves MAUVE out.

    Returns:
        A collection whose ``update`` takes ``synthetic`` and ``reference`` texts.
    """
    metrics: dict[str, Metric | MetricCollection] = {}
    if target == "parse":
        metrics |= {"function_overlap": FunctionOverlap(), "chi_square": ChiSquare()}
        metrics |= {f"top_{k}_overlap": TopKOverlap(k) for k in TOP_K}
    else:
        metrics["word_overlap"] = WordOverlap()
        if featurizer is not None:
            metrics["mauve"] = Mauve(featurizer)
    return MetricCollection(metrics)
