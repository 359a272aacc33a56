"""The mean loss of a token of an evaluation file."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torchmetrics import MeanMetric

from datamodules.batches.batch import IGNORE_INDEX, LogicalBatch, MicroBatch


class MeanTokenLoss(MeanMetric):
    """Mean over all labelled tokens, over batches and ranks, in nats: the log-perplexity. NaN stays NaN."""

    def __init__(self) -> None:
        super().__init__(nan_strategy=math.nan)  # "disable" of torchmetrics 1.9 forgets the weights

    def add(self, batch: LogicalBatch, losses: Callable[[MicroBatch], Tensor], divisor: float | None) -> None:
        """Take the tokens of a batch.

        Args:
            batch: The batch; a rank whose batch is empty takes part too.
            losses: Loss of each row of a micro-batch [rows], such as ``LogicalBatchModule.losses``.
            divisor: By which the sum of a row's token losses is divided there; None for their number.
        """
        self.update(0.0, weight=0.0)
        for micro_batch in batch.micro_batches:
            num_labels = num_labels_of(micro_batch)
            num_tokens = num_labels.sum()
            if num_tokens:
                loss = (losses(micro_batch) * (divisor or num_labels)).sum() / num_tokens
                self.update(loss, weight=num_tokens)

    def take(self) -> Tensor:
        """Return the mean over all ranks, and begin anew."""
        mean: Tensor = self.compute()
        self.reset()
        return mean


def num_labels_of(batch: MicroBatch) -> Tensor:
    """Return the number of target tokens of each row, [rows]."""
    num_labels: Tensor = torch.sum(batch.labels[:, 1:] != IGNORE_INDEX, 1)
    return num_labels
