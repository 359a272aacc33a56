"""Turns with trees as the actions that a semantic parser learns to take."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

import numpy as np
import torch
from lightning import LightningDataModule
from torch.utils.data import DataLoader, Dataset

from datamodules.bucketed_batches import BucketedBatches
from datamodules.parser_batch import ParserBatch, TurnBatch
from datamodules.readers import expand_path, read_turns
from datamodules.shard_sampler import ShardSampler
from datamodules.step_data_loader import StepDataLoader
from datamodules.step_sampler import SampledUnits
from datamodules.turn import Turn
from doppel.errors import DataError
from doppel.parsing.oracle import Actions, encode
from doppel.parsing.source import split_source
from doppel.parsing.vocabulary import PAD, ActionVocabulary

log = logging.getLogger(__name__)


class ParserDataModule(LightningDataModule):
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
        limit_train_turns: Train on this many turns, a uniform choice (``train_seed``); null for all.
        limit_val_turns: Validate on the first turns only, at most this many; the test takes all turns.
        train_seed: Seed of that choice.
        num_workers: Worker processes of the training loader.
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
        train_seed: int = 1,
        num_workers: int = 0,
    ) -> None:
        super().__init__()
        limits = {
            "max_tokens_per_batch": max_tokens_per_batch,
            "eval_batch_size": eval_batch_size,
            "limit_train_turns": limit_train_turns,
            "limit_val_turns": limit_val_turns,
        }
        for name, value in limits.items():
            if value is not None and value < 1:
                raise DataError(f"{name} is {value}: it must be at least 1")
        self.train_paths = [expand_path(path) for path in train_paths or []]
        self.val_path = None if val_path is None else expand_path(val_path)
        self.test_path = None if test_path is None else expand_path(test_path)
        self.max_tokens_per_batch = max_tokens_per_batch
        self.eval_batch_size = eval_batch_size
        self.limit_train_turns = limit_train_turns
        self.limit_val_turns = limit_val_turns
        self.train_seed = train_seed
        self.num_workers = num_workers
        self._vocabulary: ActionVocabulary | None = None
        self._train: _Examples | None = None
        self._evaluation: dict[str, list[Turn]] = {}

    @property
    def vocabulary(self) -> ActionVocabulary:
        """The actions of the training trees; known after ``setup("fit")``."""
        if self._vocabulary is None:
            raise RuntimeError('the training data is not loaded yet: call setup("fit") first')
        return self._vocabulary

    def setup(self, stage: str) -> None:
        """Read the turns that the stage needs, and encode those to train on; later calls reuse them.

        Raises:
            DataError: The run is to be private, a path that the stage needs is not set, a file is unreadable, or a
                turn has no tree.
        """
        if stage == "fit" and self._train is None:
            self._refuse_private_training()
            if not self.train_paths:
                raise DataError("there is nothing to train on: set train_paths")
            turns = [turn for path in self.train_paths for turn in _with_trees(path)]
            if self.limit_train_turns is not None and self.limit_train_turns < len(turns):
                order = np.random.default_rng(self.train_seed).permutation(len(turns))
                turns = [turns[i] for i in sorted(order[: self.limit_train_turns])]
            self._vocabulary = ActionVocabulary.build(_tree(turn) for turn in turns)
            encoded = [(turn, encode(_tree(turn), turn.utterance, self._vocabulary)) for turn in turns]
            examples = [(split_source(turn.utterance), actions) for turn, actions in encoded if actions is not None]
            if len(examples) < len(turns):
                log.warning("%d of %d turns cannot be written as actions", len(turns) - len(examples), len(turns))
            self._train = _Examples(examples, *self.rank_and_world_size())
        for name, path in (("val", self.val_path), ("test", self.test_path)):
            needed = stage == name or (name == "val" and stage in ("fit", "validate"))
            if needed and path is not None and name not in self._evaluation:
                turns = _with_trees(path)
                self._evaluation[name] = turns[: self.limit_val_turns] if name == "val" else turns
        if stage == "validate" and self.val_path is None:
            raise DataError("there is nothing to validate on: set val_path")
        if stage == "test" and self.test_path is None:
            raise DataError("there is nothing to test on: set test_path")

    def train_dataloader(self) -> DataLoader[ParserBatch]:
        """Batches of similar lengths, beginning at the step that the trainer has reached."""
        assert self._train is not None
        seed = int(os.environ.get("PL_GLOBAL_SEED", "0"))
        batches = BucketedBatches(self._train.lengths, self.max_tokens_per_batch, seed, self._train.source_lengths)
        return StepDataLoader(self._train, batches, self._global_step, batches.size, self.num_workers)  # type: ignore

    def val_dataloader(self) -> DataLoader[TurnBatch] | list[TurnBatch]:
        """Validation turns, sharded by rank; empty without ``val_path``."""
        return self._evaluation_dataloader("val")

    def test_dataloader(self) -> DataLoader[TurnBatch] | list[TurnBatch]:
        """Test turns, sharded by rank; empty without ``test_path``."""
        return self._evaluation_dataloader("test")

    def _evaluation_dataloader(self, name: str) -> DataLoader[TurnBatch] | list[TurnBatch]:
        turns = sorted(self._evaluation.get(name, []), key=lambda turn: len(_tree(turn)))
        batches = []
        for start in range(0, len(turns), self.eval_batch_size):
            part = turns[start : start + self.eval_batch_size]
            actions = None
            if self._vocabulary is not None:
                encoded = [(t, encode(_tree(t), t.utterance, self._vocabulary)) for t in part]
                known = [(split_source(turn.utterance), found) for turn, found in encoded if found is not None]
                actions = collate(known, num_actions=sum(len(a.ids) - 1 for _, a in known)) if known else None
            batches.append(TurnBatch([t.utterance for t in part], [_tree(t) for t in part], actions))
        if not batches:
            return []
        sampler = ShardSampler(len(batches), *self.rank_and_world_size())
        return DataLoader(batches, sampler=sampler, batch_size=None)  # type: ignore[arg-type]

    def _refuse_private_training(self) -> None:
        callbacks = self.trainer.callbacks if self.trainer else []  # type: ignore[attr-defined]
        if any(type(callback).__name__ == "DifferentialPrivacy" for callback in callbacks):
            raise DataError(
                "a semantic parser cannot be trained with DifferentialPrivacy, for its vocabulary is read off the "
                "training trees: set privacy: null, and train on public or synthetic turns"
            )

    def _global_step(self) -> int:
        return self.trainer.global_step if self.trainer else 0

    def rank_and_world_size(self) -> tuple[int, int]:
        """Rank of this process and number of processes."""
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)


class _Examples(Dataset[ParserBatch]):
    """Encoded turns, addressed by the items of a batch, of which this rank takes its share."""

    def __init__(self, examples: list[tuple[list[str], Actions]], rank: int, world_size: int) -> None:
        self.examples = examples
        self.rank = rank
        self.world_size = world_size
        self.lengths = [len(actions.ids) for _, actions in examples]
        self.source_lengths = [len(source) for source, _ in examples]

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, sampled: SampledUnits) -> ParserBatch:
        num_actions = sum(self.lengths[i] - 1 for i in sampled.indices)
        return collate([self.examples[i] for i in sampled.indices[self.rank :: self.world_size]], num_actions)


def collate(examples: Sequence[tuple[list[str], Actions]], num_actions: int) -> ParserBatch:
    """Pad the actions of some turns to one length."""
    width = max((len(actions.ids) for _, actions in examples), default=1)
    ids = torch.full((len(examples), width), PAD)
    pointers, copies = torch.full_like(ids, -1), torch.full_like(ids, -1)
    for row, (_, actions) in enumerate(examples):
        length = len(actions.ids)
        ids[row, :length] = torch.tensor(actions.ids)
        pointers[row, :length] = torch.tensor(actions.pointers)
        copies[row, :length] = torch.tensor(actions.copies)
    return ParserBatch([source for source, _ in examples], ids, pointers, copies, num_actions)


def _with_trees(path: str) -> list[Turn]:
    turns = read_turns(path, "utterance")
    missing = sum(turn.parse is None for turn in turns)
    if missing:
        raise DataError(f"{path}: {missing} of {len(turns)} turns have no parse: a parser learns from turns with trees")
    return turns


def _tree(turn: Turn) -> str:
    assert turn.parse is not None
    return turn.parse
