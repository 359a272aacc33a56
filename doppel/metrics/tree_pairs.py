"""Metrics that compare predicted trees with gold ones, turn by turn: whole graphs, API calls, bags of nodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric

from doppel.lispress import uses_function
from doppel.metrics.anonymous_graph import anonymous_graph, anonymous_subgraphs

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

    def __init__(self, functions: Sequence[str] = ()) -> None:
        """Set the functions to tell apart.

        Args:
            functions: patterns as in ``uses_function``: ``WeatherQueryApi``, ``EventOnDate*``.

        Raises:
            ValueError: one of them is no pattern.
        """
        super().__init__()
        self.functions = tuple(dict.fromkeys(functions))
        for pattern in self.functions:
            uses_function(None, pattern)
        self.suffixes = ("", *(f"{sign}{pattern}" for pattern in self.functions for sign in ("@", "@not ")))
        zeros = torch.zeros(len(self.suffixes), len(self.names), dtype=torch.float64)
        self.add_state("sums", zeros, dist_reduce_fx="sum")
        self.add_state("counts", zeros.clone(), dist_reduce_fx="sum")

    @abstractmethod
    def score(self, predicted: str | None, gold: str) -> tuple[Score, ...]:
        """Return values of one turn, one for each of ``names``; a prediction that is None or no Lispress is wrong."""

    def update(self, predicted: Sequence[str | None], gold: Sequence[str]) -> None:
        """Add turns: linearised trees (None where there is none) and the true ones.

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
        """Return means by name, then by name and ``@PATTERN`` or ``@not PATTERN``; nan where no turn counts."""
        means = self.sums / self.counts
        return {
            f"{name}{suffix}": means[row, column]
            for row, suffix in enumerate(self.suffixes)
            for column, name in enumerate(self.names)
        }


class GraphMatch(TreePairMetric):
    """Exact match of anonymised graphs (Zhou et al. 2022): ``exact_match`` in [0, 1], and ``num_turns``.

    A turn is right where the multisets of node names and of (source, label, target) names are equal, every
    string being called the same.
    """

    names = ("exact_match",)

    def score(self, predicted: str | None, gold: str) -> tuple[Score, ...]:
        """Score a match by 1, none by 0."""
        return (float(predicted is not None and anonymous_graph(predicted) == anonymous_graph(gold)),)

    def compute(self) -> dict[str, Tensor]:
        """Return shares of right turns by name, and the number of turns that each is taken over."""
        counts = {f"num_turns{suffix}": self.counts[row, 0].long() for row, suffix in enumerate(self.suffixes)}
        return super().compute() | counts


class BagOfNodes(TreePairMetric):
    """Precision and recall of the multiset of node names, strings hidden, averaged over turns, in [0, 1].

    ``node_precision`` and ``node_recall``. Kinder than ``ApiMatch``: a tree with all the right functions in the
    wrong places has 1 and 1.
    """

    names = ("node_precision", "node_recall")

    def score(self, predicted: str | None, gold: str) -> tuple[Score, ...]:
        """Return precision and recall of one turn; 0 and 0 without a valid prediction."""
        guess = anonymous_graph(predicted) if predicted is not None else None
        wanted = anonymous_graph(gold)
        if guess is None or wanted is None:
            return 0.0, 0.0
        matched = (Counter(guess.nodes) & Counter(wanted.nodes)).total()
        return matched / len(guess.nodes), matched / len(wanted.nodes)


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

    def __init__(self, apis: Collection[str] = SMCALFLOW_APIS, functions: Sequence[str] = ()) -> None:
        """Set which functions are APIs.

        Args:
            apis: node names, ``SMCALFLOW_APIS`` or ``TREEDST_APIS`` or others.
            functions: patterns of the functions to tell apart, as in ``uses_function``.

        Raises:
            ValueError: there is no API, or a function is no pattern.
        """
        if not apis:
            raise ValueError("the list of APIs is empty: name at least one function")
        super().__init__(functions)
        self.apis = frozenset(apis)

    def score(self, predicted: str | None, gold: str) -> tuple[Score, ...]:
        """Return precision and recall of one turn, None twice where the gold tree calls no API."""
        wanted = Counter(anonymous_subgraphs(gold, self.apis))
        if not wanted:
            return None, None
        called = Counter(anonymous_subgraphs(predicted, self.apis) if predicted is not None else ())
        matched = (wanted & called).total()
        return matched / (called.total() + 1e-6), matched / wanted.total()
