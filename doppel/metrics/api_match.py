"""How much of the API calls in a tree was predicted, whole subgraphs compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from doppel.metrics.anonymous_graph import anonymous_subgraphs
from doppel.metrics.tree_pair_metric import Score, TreePairMetric

SMCALFLOW_APIS = (
    "Yield",
    "RecipientAvailability",
    "FindReports",
    "FindManager",
    *(f"{verb}{step}EventWrapper" for step in ("Preflight", "Commit") for verb in ("Update", "Create", "Delete")),
    "FindEventWrapperWithDefaults",
    "RecipientWithNameLike",
    "EventAttendance",
)
"""Functions of SMCalFlow with an effect on, or an answer from, the outside world (Zhou et al. 2022)."""

TREEDST_APIS = (
    "plan",
    "Create",
    "Find",
    "Update",
    "Delete",
    "Book",
    "CheckExistence",
    "reference",
    "revise",
    "refer",
    "someSalient",
)
"""The same of TreeDST."""


class ApiMatch(TreePairMetric):
    """Precision and recall of API calls: ``api_precision`` and ``api_recall``, in [0, 1].

    The subgraph under every node with an API's name is one call; calls match where their anonymised graphs are
    equal, each predicted call at most one gold call (the published evaluation may use one twice). Precision is
    matched / (predicted + 1e-6), recall matched / gold; both are averaged over the turns with at least one
    gold call.
    """

    names = ("api_precision", "api_recall")

    def __init__(
        self, apis: Collection[str] = SMCALFLOW_APIS, functions: Sequence[str] | None = None, **kwargs: Any
    ) -> None:
        """Set which functions are APIs.

        Args:
            apis: node names, ``SMCALFLOW_APIS`` or ``TREEDST_APIS`` or others.
            functions: patterns of the functions to tell apart, as in ``uses_function``.
            kwargs: passed to ``torchmetrics.Metric``.

        Raises:
            ValueError: there is no API, or a function is no pattern.
        """
        if not apis:
            raise ValueError("the list of APIs is empty: name at least one function")
        super().__init__(functions, **kwargs)
        self.apis = frozenset(apis)

    def score(self, predicted: str | None, gold: str) -> tuple[Score, ...]:
        """Precision and recall of one turn, None twice where the gold tree calls no API."""
        wanted = Counter(anonymous_subgraphs(gold, self.apis))
        if not wanted:
            return None, None
        found = Counter(anonymous_subgraphs(predicted, self.apis) if predicted is not None else ())
        matched = (wanted & found).total()
        return matched / (found.total() + 1e-6), matched / wanted.total()
