"""Mean length of utterances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric


class MeanWords(Metric):
    """Mean number of space-separated words an utterance; nan before the first utterance."""

    full_state_update = False
    num_words: Tensor
    num_utterances: Tensor

    def __init__(self, **kwargs: Any) -> None:
        """Args: kwargs: passed to ``torchmetrics.Metric``."""
        super().__init__(**kwargs)
        self.add_state("num_words", torch.tensor(0), dist_reduce_fx="sum")
        self.add_state("num_utterances", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, utterances: Sequence[str]) -> None:
        """Add utterances."""
        self.num_utterances += len(utterances)
        self.num_words += sum(len(utterance.split()) for utterance in utterances)

    def compute(self) -> Tensor:
        """Scalar mean over everything added so far."""
        return self.num_words / self.num_utterances
