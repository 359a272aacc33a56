"""Utterances for a semantic parser to annotate."""

from __future__ import annotations

import math
import warnings

from lightning import LightningDataModule
from torch.utils.data import DataLoader

from datamodules.prompt_batch import PromptBatch
from datamodules.readers import Unit, expand_path, read_turns
from datamodules.shard_sampler import ShardSampler
from datamodules.turn import Turn
from doppel.errors import DataError


class AnnotationDataModule(LightningDataModule):
    """Every utterance of a file in batches of similar length, sharded by rank, less those already annotated.

    Args:
        path: Whatever ``DialogueDataModule`` reads: dialogues, JSON lines with ``utterance``, ``embedded:…``; trees are
            not looked at. ``$VARIABLE`` is filled in.
        unit: ``dialogue`` or ``user`` also writes the ``unit`` of each line; ``utterance`` writes none.
        batch_size: Most utterances on a rank that are annotated together, and written together.
    """

    def __init__(self, path: str, unit: Unit = "utterance", batch_size: int = 1024) -> None:
        super().__init__()
        if batch_size < 1:
            raise DataError(f"batch_size is {batch_size}: it must be at least 1")
        self.path = expand_path(path)
        self.unit = unit
        self.batch_size = batch_size
        #: Indices of utterances that are already written.
        self.done: set[int] = set()
        self._turns: list[Turn] = []

    def setup(self, stage: str) -> None:
        """Read the turns."""
        self._turns = read_turns(self.path, self.unit, with_trees=False)

    @property
    def num_total(self) -> int:
        """Utterances over all ranks, with those already written; known after ``setup``."""
        return len(self._turns)

    def predict_dataloader(self) -> DataLoader[PromptBatch]:
        """Batches of utterances that are not done yet, longest first, on this rank."""
        warnings.filterwarnings("ignore", message="Couldn't infer the batch indices")
        todo = [index for index in range(len(self._turns)) if index not in self.done]
        todo.sort(key=lambda index: len(self._turns[index].utterance), reverse=True)
        rank, world_size = (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)
        size = max(1, min(self.batch_size, math.ceil(len(todo) / world_size)))
        parts = [todo[start : start + size] for start in range(0, len(todo), size)]
        batches = [
            PromptBatch(part, [self._turns[i].utterance for i in part], [], [self._fields(i) for i in part])
            for part in parts
        ]
        sampler = ShardSampler(len(batches), rank, world_size)
        return DataLoader(batches, sampler=sampler, batch_size=None)  # type: ignore[arg-type]

    def _fields(self, index: int) -> dict[str, str]:
        turn = self._turns[index]
        fields = {} if turn.domain is None else {"domain": turn.domain}
        return fields if self.unit == "utterance" else {**fields, "unit": turn.unit}
