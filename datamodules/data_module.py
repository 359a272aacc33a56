"""What all data modules share: ranks, steps, the text format, evaluation files, and loaders of their own."""

from __future__ import annotations

import math
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist
from lightning import LightningDataModule

from datamodules.batches.batch import PromptBatch
from datamodules.batches.loader import Batches, Loader, UnitSampler
from datamodules.guards.overlap import Named, Source
from datamodules.reading.files import expand_path
from datamodules.text_format import TextFormat
from doppel.errors import DataError
from doppel.privacy.sampling import PoissonSampler

Batch = TypeVar("Batch")


class DataModule(LightningDataModule):
    """Base of the data modules.

    Attributes:
        text_format: Overrides the text format of the trainer's model, for use without a trainer.
        is_public: Whether anybody may see all that it reads. Without privacy nothing else is trained on, unless that is
            asked for by name.
        bands: Groups of units that steps draw from in turn; a private training whose noise is correlated sets it.
        sampler: The last one that :meth:`poisson` has built.
    """

    is_public: bool = False
    text_format: TextFormat | None = None
    bands: int = 1
    sampler: PoissonSampler | None = None

    def require_text_format(self) -> TextFormat:
        """Return the text format set here, else that of the trainer's model.

        Raises:
            RuntimeError: There is neither.
        """
        if self.text_format is not None:
            return self.text_format
        if self.trainer is None:
            raise RuntimeError("a data module without a trainer needs its `text_format` attribute set")
        text_format = self.trainer.lightning_module.text_format
        assert isinstance(text_format, TextFormat)
        return text_format

    def rank_and_world_size(self) -> tuple[int, int]:
        """Rank of this process and number of processes."""
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)

    def poisson(self, num_units: int, batch_size: int, seed: int | None) -> PoissonSampler:
        """Build a sampler of Poisson samples of B units on average, the same on every rank; an epoch is ⌈N / B⌉ steps.

        Raises:
            RuntimeError: The ranks would draw different samples.
        """
        steps_per_epoch = math.ceil(num_units / batch_size)
        sampler = PoissonSampler(num_units, batch_size / num_units, steps_per_epoch, seed, self.bands)
        self.sampler = sampler
        if self.rank_and_world_size()[1] == 1:
            return sampler
        if self.trainer is not None:
            sampler.share_secret(self.trainer.strategy.broadcast)
        elif seed is None:
            raise RuntimeError("several ranks draw one sample: without a trainer they need a sampling_seed in common")
        if dist.is_available() and dist.is_initialized():
            fingerprints: list[str] = [""] * dist.get_world_size()
            dist.all_gather_object(fingerprints, sampler.fingerprint())
            if len(set(fingerprints)) > 1:
                raise RuntimeError("the ranks do not share one sampling secret: the strategy's broadcast is broken")
        return sampler

    def global_step(self) -> int:
        """Return the number of optimiser steps taken so far."""
        return self.trainer.global_step if self.trainer else 0

    def steps(self, sampler: UnitSampler, make: Callable[[int, list[int]], Batch]) -> Loader[Batch]:
        """Build a loader of an epoch's batches, beginning at the step that the trainer has reached.

        Args:
            sampler: Draws the units of a step.
            make: Makes what this rank computes of a step and all its units.
        """

        def numbers() -> range:
            start = self.global_step()
            return range(start, start + len(sampler))

        return Loader(lambda step: make(step, sampler.units_at(step)), numbers)

    def sharded(self, batches: Batches[Batch] | list[Batch], empty: Batch | None = None) -> Loader[Batch]:
        """Load every ``world_size``-th batch, in order, none repeated; ``empty`` for a rank without one."""
        rank, world_size = self.rank_and_world_size()
        numbers = range(rank, len(batches), world_size)
        if empty is not None and not numbers and len(batches):
            return Loader(lambda number: empty, lambda: range(1))
        return Loader(batches.__getitem__, lambda: numbers)


class TrainingDataModule(DataModule, ABC):
    """Base of the data modules that train: logical batches by their step, and evaluation files.

    Args:
        val_path: Validation file; None for none. ``$VARIABLE`` is filled in.
        test_path: Test file, likewise.

    Attributes:
        evaluation: Batches over all ranks, by name: ``val``, ``test``.
        also_private: Files that its metrics may tell nothing of, beside its own: those that the model learnt from.
        also_public: Files that have to be public, for the weights that a training starts from learnt from them.
    """

    def __init__(self, val_path: str | None = None, test_path: str | None = None) -> None:
        super().__init__()
        self.val_path = None if val_path is None else expand_path(val_path)
        self.test_path = None if test_path is None else expand_path(test_path)
        self.evaluation: dict[str, Batches[Any] | list[Any]] = {}
        self.also_private: list[Source] = []
        self.also_public: list[Named] = []
        self._is_loaded = False

    def prepare_data(self) -> None:
        """Read before Lightning opens a logger, so that data that cannot be used start no run there."""
        if self.trainer is not None and self.trainer.state.fn is not None:
            self.setup(self.trainer.state.fn)

    @abstractmethod
    def load_train(self) -> None:
        """Read the training data."""

    @abstractmethod
    def load_evaluation(self, name: str, path: str) -> Batches[Any] | list[Any]:
        """Return batches of a file, over all ranks; ``name`` is ``val`` or ``test``."""

    def refuse_private(self) -> None:
        """Refuse what it has read of files that are declared public, if one of them is a private one."""

    @abstractmethod
    def empty_batch(self, name: str) -> Any:
        """Build a batch without rows, for ranks beyond the number of batches.

        Lightning refuses a rank without a batch, and leaves its hooks out where the other ranks wait for each other.
        """

    def setup(self, stage: str) -> None:
        """Read what the stage needs; later calls reuse it.

        Raises:
            DataError: A path that the stage needs is not set, or a file cannot be used.
        """
        if stage == "fit" and not self._is_loaded:
            self.load_train()
            self._is_loaded = True
        for name, path, stages in (
            ("val", self.val_path, ("fit", "validate")),
            ("test", self.test_path, ("test",)),
        ):
            if stage in stages and name not in self.evaluation:
                if path is not None:
                    self.evaluation[name] = self.load_evaluation(name, path)
                elif stage != "fit":
                    raise DataError(f"there is nothing to {stages[-1]} on: set {name}_path")
        self.refuse_private()

    def val_dataloader(self) -> Loader[Any] | list[Any]:
        """Return validation batches, sharded by rank; empty without ``val_path``."""
        return self._evaluation_dataloader("val")

    def test_dataloader(self) -> Loader[Any] | list[Any]:
        """Test batches, sharded by rank; empty without ``test_path``."""
        return self._evaluation_dataloader("test")

    def _evaluation_dataloader(self, name: str) -> Loader[Any] | list[Any]:
        if name in self.evaluation:
            return self.sharded(self.evaluation[name], self.empty_batch(name))
        warnings.filterwarnings("ignore", message="Total length of `list` across ranks is zero")
        return []

    @property
    def seed(self) -> int:
        """``seed_everything``, for a data order that makes no privacy claim."""
        return int(os.environ.get("PL_GLOBAL_SEED", "0"))


class PredictionDataModule(DataModule, ABC):
    """Prompts in batches of similar length, sharded by rank, less those already answered.

    The writer of the answers sets ``done`` before the loader is made, so an interrupted run goes on where it stopped,
    under any number of ranks.

    Attributes:
        batch_size: Most prompts on a rank that are answered together; fewer where all ranks would not have a batch.
        done: Indices that are already written.
        is_released: Whether it reads nothing but what a step of a run has released. The command line looks for that in
            the manifest of the run.
        prompts_digest: Tells what it reads from other prompts, once ``setup`` was called: a SHA-256, of private text a
            keyed one. None where it reads nothing.
    """

    is_released: bool = False
    prompts_digest: str | None = None

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
        """Return the length of a prompt."""

    @abstractmethod
    def make(self, indices: list[int]) -> PromptBatch:
        """Build the batch of some prompts."""

    def predict_dataloader(self) -> Loader[PromptBatch]:
        """Return batches of prompts that are not done yet, longest first, on this rank."""
        # Lightning cannot see the indices inside a batch of ours, and says so; the batch carries them itself.
        warnings.filterwarnings("ignore", message="Couldn't infer the batch indices")
        warnings.filterwarnings("ignore", message="Total length of `Loader` across ranks is zero")  # all are done
        todo = [index for index in range(self.num_total) if index not in self.done]
        todo.sort(key=self.length, reverse=True)
        size = max(1, min(self.batch_size, math.ceil(len(todo) / self.rank_and_world_size()[1])))
        return self.sharded([self.make(todo[start : start + size]) for start in range(0, len(todo), size)])


def check_limits(**limits: int | None) -> None:
    """Refuse arguments below 1.

    Raises:
        DataError: One is, by name.
    """
    for name, value in limits.items():
        if value is not None and value < 1:
            raise DataError(f"{name} is {value}: it must be at least 1")
