"""What the data modules for ``predict`` share."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod

from torch.utils.data import DataLoader

from datamodules.data_module import DataModule, check_limits
from datamodules.prompt_batch import PromptBatch


class PredictionDataModule(DataModule, ABC):
    """Prompts in batches of similar length, sharded by rank, less those already answered.

    The writer of the answers sets ``done`` before the loader is made, so an interrupted run goes on where it stopped,
    under any number of ranks.

    Attributes:
        batch_size: Most prompts on a rank that are answered together; fewer where all ranks would not have a batch.
        done: Indices that are already written.
    """

    def __init__(self, batch_size: int) -> None:
        super().__init__()
        check_limits(batch_size=batch_size)
        self.batch_size = batch_size
        self.done: set[int] = set()

    @property
    @abstractmethod
    def num_total(self) -> int:
        """Answers over all ranks, with those already written; known after ``setup``."""

    @abstractmethod
    def length(self, index: int) -> int:
        """Length of a prompt."""

    @abstractmethod
    def make(self, indices: list[int]) -> PromptBatch:
        """The batch of some prompts."""

    def predict_dataloader(self) -> DataLoader[PromptBatch]:
        """Batches of prompts that are not done yet, longest first, on this rank."""
        # Lightning cannot see the indices inside a batch of ours, and says so; the batch carries them itself.
        warnings.filterwarnings("ignore", message="Couldn't infer the batch indices")
        todo = [index for index in range(self.num_total) if index not in self.done]
        todo.sort(key=self.length, reverse=True)
        size = max(1, min(self.batch_size, math.ceil(len(todo) / self.rank_and_world_size()[1])))
        return self.sharded([self.make(todo[start : start + size]) for start in range(0, len(todo), size)])
