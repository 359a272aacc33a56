"""Share of the commonest text: what a model that falls back on its mode drives up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from doppel.metrics.distinct import fingerprint
from doppel.metrics.string_state import StringStateMetric


class Commonest(StringStateMetric):
    """Occurrences of the commonest text over the number of texts, in (0, 1]; nan before the first one.

    A value far above the reference's says that the samples repeat one text. Ranks exchange 64-bit fingerprints and
    counts, so a state is 16 bytes a distinct text.
    """

    higher_is_better = False

    def __init__(self, **kwargs: Any) -> None:
        """Args: kwargs: passed to ``torchmetrics.Metric``."""
        super().__init__(**kwargs)
        self.add_list_state("fingerprints", torch.int64)
        self.add_list_state("counts", torch.int64)

    def update(self, texts: Sequence[str]) -> None:
        """Add texts."""
        counts = Counter(texts)
        self.append_state("fingerprints", torch.tensor([fingerprint(text) for text in counts], dtype=torch.int64))
        self.append_state("counts", torch.tensor(list(counts.values()), dtype=torch.int64))

    def compute(self) -> Tensor:
        """Scalar share over everything added so far."""
        counts = self.joined_state("counts")
        if not counts.numel():
            return torch.tensor(float("nan"), device=self.device)
        distinct, places = self.joined_state("fingerprints").unique(return_inverse=True)
        totals = torch.zeros_like(distinct).scatter_add_(0, places, counts)
        return totals.max() / totals.sum()
