"""Utterances for a semantic parser to annotate."""

from __future__ import annotations

from datamodules.batches.batch import PromptBatch
from datamodules.data_module import PredictionDataModule
from datamodules.reading.columns import Columns
from datamodules.reading.embedded import is_embedded
from datamodules.reading.example import Example, Unit
from datamodules.reading.examples import read_examples
from datamodules.reading.files import content_digest, expand_path
from doppel.privacy.fingerprint import keyed_fingerprint


class AnnotationDataModule(PredictionDataModule):
    """Every utterance of a file in batches of similar length, sharded by rank, less those already annotated.

    *Privacy.* Utterances that are not public are annotated in silence: nothing counts, logs or hashes them
    (:func:`datamodules.data_module.is_disclosable`). What is written holds them, and is as private as they are.

    Args:
        path: Whatever ``DialogueDataModule`` reads: tables, text, dialogues, ``embedded:…``; trees are not looked at.
            ``$VARIABLE`` is filled in.
        unit: ``dialogue`` or ``user`` also writes the ``unit`` of each line; ``utterance`` writes none.
        columns: What the columns of the file are called; null for the usual names.
        batch_size: Most utterances on a rank that are annotated together, and written together.
        is_public: Whether anybody may see the utterances, as those of the embedded grammar.
    """

    def __init__(
        self,
        path: str,
        unit: Unit = "utterance",
        batch_size: int = 1024,
        columns: Columns | None = None,
        is_public: bool = False,
    ) -> None:
        super().__init__(batch_size)
        self.path = expand_path(path)
        self.is_public = is_public or is_embedded(self.path)
        self.unit = unit
        self.columns = columns
        self._turns: list[Example] = []

    def setup(self, stage: str) -> None:
        """Read the turns."""
        self._turns = read_examples(
            self.path, self.unit, with_trees=False, columns=self.columns, unit_names="exact"
        )  # what trains on them reads their names by its own rule
        self.prompts_digest = keyed_fingerprint(content_digest(self.path, columns=self.columns))

    @property
    def num_total(self) -> int:
        """Utterances over all ranks, with those already written; known after ``setup``."""
        return len(self._turns)

    def length(self, index: int) -> int:
        """Return the number of characters of an utterance."""
        return len(self._turns[index].utterance)

    def make(self, indices: list[int]) -> PromptBatch:
        """Build the batch of some utterances."""
        return PromptBatch(indices, [self._turns[i].utterance for i in indices], [], [self._fields(i) for i in indices])

    def _fields(self, index: int) -> dict[str, str]:
        turn = self._turns[index]
        fields = {} if turn.label is None else {"label": turn.label}
        return fields if self.unit == "utterance" else {**fields, "unit": turn.unit}
