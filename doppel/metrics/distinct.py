"""Share of distinct texts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from doppel.metrics.string_state import StringStateMetric


def fingerprint(text: str) -> int:
    """A signed 64-bit number that stands for a text."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


class Distinct(StringStateMetric):
    """Number of distinct utterances over the number of utterances, in (0, 1]; nan before the first one.

    Ranks exchange 64-bit fingerprints, so a state is 8 bytes an utterance.
    """

    higher_is_better = True
    num_utterances: Tensor

    def __init__(self, **kwargs: Any) -> None:
        """Args: kwargs: passed to ``torchmetrics.Metric``."""
        super().__init__(**kwargs)
        self.add_list_state("fingerprints", torch.int64)
        self.add_state("num_utterances", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, utterances: Sequence[str]) -> None:
        """Add utterances."""
        self.num_utterances += len(utterances)
        self.append_state("fingerprints", torch.tensor([fingerprint(text) for text in set(utterances)]))

    def compute(self) -> Tensor:
        """Scalar share over everything added so far."""
        return self.joined_state("fingerprints").unique().numel() / self.num_utterances
