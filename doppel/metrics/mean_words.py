"""Mean length of utterances."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torchmetrics import MeanMetric


class MeanWords(MeanMetric):
    """Mean number of space-separated words an utterance; nan before the first utterance."""

    def update(self, utterances: Sequence[str]) -> None:  # type: ignore[override]
        """Add utterances."""
        super().update(torch.tensor([float(len(utterance.split())) for utterance in utterances]))
