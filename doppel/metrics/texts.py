"""Metrics of one set of texts or trees: repetition, length, validity."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import MeanMetric

from doppel.lispress import is_valid
from doppel.metrics.string_state import StringStateMetric


def fingerprint(text: str) -> int:
    """A signed 64-bit number that stands for a text."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


class _TextCounts(StringStateMetric):
    """Counts texts. Ranks exchange 64-bit fingerprints and counts, so a state is 16 bytes a distinct text."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_list_state("fingerprints", torch.int64)
        self.add_list_state("counts", torch.int64)

    def update(self, texts: Sequence[str]) -> None:
        """Add texts."""
        counts = Counter(texts)
        self.append_state("fingerprints", torch.tensor([fingerprint(text) for text in counts], dtype=torch.int64))
        self.append_state("counts", torch.tensor(list(counts.values()), dtype=torch.int64))

    def totals(self) -> Tensor:
        """How often each distinct text occurs."""
        distinct, places = self.joined_state("fingerprints").unique(return_inverse=True)
        return torch.zeros_like(distinct).scatter_add_(0, places, self.joined_state("counts"))


class Distinct(_TextCounts):
    """Number of distinct texts over the number of texts, in (0, 1]; nan before the first one."""

    higher_is_better = True

    def compute(self) -> Tensor:
        """Scalar share over everything added so far."""
        totals = self.totals()
        return totals.count_nonzero() / totals.sum()


class Commonest(_TextCounts):
    """Occurrences of the commonest text over the number of texts, in (0, 1]; nan before the first one.

    A value far above the reference's says that the samples repeat one text: a model that falls back on its mode.
    """

    higher_is_better = False

    def compute(self) -> Tensor:
        """Scalar share over everything added so far."""
        totals = self.totals()
        return totals.max() / totals.sum() if totals.numel() else torch.tensor(float("nan"), device=self.device)


class MeanWords(MeanMetric):
    """Mean number of space-separated words an utterance; nan before the first utterance."""

    def update(self, utterances: Sequence[str]) -> None:  # type: ignore[override]
        """Add utterances."""
        super().update(torch.tensor([float(len(utterance.split())) for utterance in utterances]))


class ValidTrees(MeanMetric):
    """Share of trees that are valid Lispress, in [0, 1]; nan before the first tree."""

    higher_is_better = True  # type: ignore[assignment]

    def update(self, trees: Sequence[str | None]) -> None:  # type: ignore[override]
        """Add linearised trees (None: an utterance without a tree, not counted)."""
        super().update(torch.tensor([float(is_valid(tree)) for tree in trees if tree is not None]))
