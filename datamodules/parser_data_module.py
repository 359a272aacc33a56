"""Turns with trees as the actions that a semantic parser learns to take."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from datamodules.batches.batch import ExampleBatch, ParserBatch
from datamodules.batches.loader import Loader
from datamodules.batches.samplers import BucketedBatches
from datamodules.data_module import TrainingDataModule, check_limits
from datamodules.reading.columns import Columns
from datamodules.reading.embedded import is_embedded
from datamodules.reading.example import Example
from datamodules.reading.examples import read_examples
from datamodules.reading.files import expand_path
from doppel.errors import DataError
from doppel.parsing.oracle import Actions, encode
from doppel.parsing.vocabulary import PAD, ActionVocabulary
from doppel.text.words import pieces_of

log = logging.getLogger(__name__)

_Example = tuple[list[str], Actions]


class ParserDataModule(TrainingDataModule):
    """(utterance, tree) turns for a :class:`~lightning_modules.semantic_parser.SemanticParser`.

    The vocabulary of actions is read off the training trees, so training is not private: give it public turns, or
    synthetic ones that a private model wrote.

    Args:
        train_paths: Training files, one after the other: whatever ``DialogueDataModule`` reads. ``$VARIABLE`` is
            filled in.
        val_path: Validation file, likewise; null for none.
        test_path: Test file, likewise; null for none.
        max_tokens_per_batch: Bound on the actions of a batch with their padding, over all ranks.
        eval_batch_size: Turns that are parsed together in validation and test.
        limit_train_turns: Train on this many turns, a uniform choice, always the same; null for all.
        limit_val_turns: Validate on the first turns only, at most this many; the test takes all turns.
        columns: What the columns of all files are called; null for the usual names.
    """

    def __init__(
        self,
        train_paths: list[str] | None = None,
        val_path: str | None = None,
        test_path: str | None = None,
        max_tokens_per_batch: int = 2048,
        eval_batch_size: int = 256,
        limit_train_turns: int | None = None,
        limit_val_turns: int | None = None,
        columns: Columns | None = None,
    ) -> None:
        super().__init__(val_path, test_path)
        self.columns = columns
        check_limits(
            max_tokens_per_batch=max_tokens_per_batch,
            eval_batch_size=eval_batch_size,
            limit_train_turns=limit_train_turns,
            limit_val_turns=limit_val_turns,
        )
        self.train_paths = [expand_path(path) for path in train_paths or []]
        self.is_public = all(map(is_embedded, self.train_paths))
        self.max_tokens_per_batch = max_tokens_per_batch
        self.eval_batch_size = eval_batch_size
        self.limit_train_turns = limit_train_turns
        self.limit_val_turns = limit_val_turns
        self._vocabulary: ActionVocabulary | None = None
        self._examples: list[_Example] = []

    @property
    def vocabulary(self) -> ActionVocabulary:
        """The actions of the training trees; known after ``setup("fit")``."""
        if self._vocabulary is None:
            raise RuntimeError('the training data is not loaded yet: call setup("fit") first')
        return self._vocabulary

    def load_train(self) -> None:
        """Read the training turns and write them as actions.

        Raises:
            DataError: ``train_paths`` is not set, a file is unreadable, or a turn has no tree.
        """
        if not self.train_paths:
            raise DataError("there is nothing to train on: set train_paths")
        turns = [turn for path in self.train_paths for turn in self._with_trees(path)]
        if self.limit_train_turns is not None and self.limit_train_turns < len(turns):
            order = np.random.default_rng(1).permutation(len(turns))
            turns = [turns[i] for i in sorted(order[: self.limit_train_turns])]
        vocabulary = ActionVocabulary.build(_tree(turn) for turn in turns)
        start = getattr(self.trainer and self.trainer.lightning_module, "start", lambda: None)()
        self._vocabulary = vocabulary if start is None else start.vocabulary.extended(vocabulary)
        self.evaluation.clear()  # turns that were read before there was a vocabulary have no actions
        self._examples = _examples(turns, self._vocabulary)
        if len(self._examples) < len(turns):
            log.warning("%d of %d requests cannot be written as actions", len(turns) - len(self._examples), len(turns))

    def load_evaluation(self, name: str, path: str) -> list[ExampleBatch]:
        """Read turns, and write as actions those that the vocabulary can express."""
        turns = self._with_trees(path)[: self.limit_val_turns if name == "val" else None]
        turns.sort(key=lambda turn: len(_tree(turn)))
        batches = []
        for start in range(0, len(turns), self.eval_batch_size):
            part = turns[start : start + self.eval_batch_size]
            known = _examples(part, self._vocabulary) if self._vocabulary is not None else []
            actions = collate(known, sum(len(a.ids) - 1 for _, a in known)) if known else None
            batches.append(ExampleBatch([t.utterance for t in part], [_tree(t) for t in part], actions))
        return batches

    def empty_batch(self, name: str) -> ExampleBatch:
        """Build a batch without turns."""
        return ExampleBatch([], [], None)

    def train_dataloader(self) -> Loader[ParserBatch]:
        """Return batches of similar lengths, beginning at the step that the trainer has reached."""
        examples, (rank, world_size) = self._examples, self.rank_and_world_size()
        lengths = [len(actions.ids) for _, actions in examples]
        source_lengths = [len(source) for source, _ in examples]

        def make(step: int, drawn: list[int]) -> ParserBatch:
            num_actions = sum(lengths[i] - 1 for i in drawn)
            return collate([examples[i] for i in drawn[rank::world_size]], num_actions)

        return self.steps(BucketedBatches(lengths, self.max_tokens_per_batch, self.seed, source_lengths), make)

    def _with_trees(self, path: str) -> list[Example]:
        return read_examples(path, "utterance", needs=("parse",), columns=self.columns)


def collate(examples: Sequence[_Example], num_actions: int) -> ParserBatch:
    """Pad the actions of some turns to one length."""
    fields = {"ids": PAD, "pointers": -1, "copies": -1}
    padded = {name: torch.full((0, 1), filler) for name, filler in fields.items()}
    if examples:
        for name, filler in fields.items():
            rows = [torch.tensor(getattr(actions, name)) for _, actions in examples]
            padded[name] = pad_sequence(rows, batch_first=True, padding_value=filler)
    return ParserBatch([source for source, _ in examples], num_actions=num_actions, **padded)


def _examples(turns: Sequence[Example], vocabulary: ActionVocabulary) -> list[_Example]:
    """Pieces of the utterance and actions of the turns that can be written as such."""
    encoded = ((turn, encode(_tree(turn), turn.utterance, vocabulary)) for turn in turns)
    return [(pieces_of(turn.utterance), actions) for turn, actions in encoded if actions is not None]


def _tree(turn: Example) -> str:
    assert turn.parse is not None
    return turn.parse
