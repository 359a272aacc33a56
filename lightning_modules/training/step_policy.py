"""What may differ between an ordinary and a private optimiser step."""

from __future__ import annotations

import hashlib
import os
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch.profiler import record_function

from doppel.gradients import GradientReducer
from doppel.privacy.private_step import closed_name

if TYPE_CHECKING:
    from doppel.privacy.private_step import UnitRows


def keep_adapters_wide(trainer: Any) -> None:
    """Let ``bf16-true`` hold frozen weights alone in bfloat16: Lightning would round trained ones to it, too.

    A training of adapters computes under it as under ``bf16-mixed``, with its base in bfloat16.
    """
    if trainer.precision == "bf16-true":
        device = trainer.strategy.root_device.type
        trainer.strategy.precision_plugin = MixedPrecision("bf16-mixed", device)


class StepPolicy(Protocol):
    """How a :class:`~lightning_modules.training.logical_batch_module.LogicalBatchModule` takes a step.

    A module holds one as ``step_policy``. That of an ordinary run is :class:`PlainStep`; the callback
    ``DifferentialPrivacy`` puts a :class:`~doppel.privacy.private_step.PrivateStep` in its place, and nothing else.
    """

    def micro_batch(self, batch: UnitRows, reducer: GradientReducer | None) -> AbstractContextManager[None]:
        """Return the context of a micro-batch's forward and backward pass; a step's last one is given the reducer."""

    def seed_dropout(self, step: int, rank: int) -> None:
        """Seed what the model draws in a step."""

    def metric_name(self, name: str, is_public: bool) -> str | None:
        """Return the name to log a metric under; None keeps it in the process."""

    def finish(self, reducer: GradientReducer, expected_num_units: float, step: int) -> None:
        """Make the gradients of this rank's micro-batches those that the optimiser takes."""


class PlainStep:
    """The step of a run that makes no claim."""

    def micro_batch(self, batch: UnitRows, reducer: GradientReducer | None) -> AbstractContextManager[None]:
        """Let the sum over ranks of what is complete overlap the rest of the backward pass."""
        return nullcontext() if reducer is None else reducer.watching()

    def seed_dropout(self, step: int, rank: int) -> None:
        """Seed by ``seed_everything``, step and rank: a resumed run draws what an undisturbed one draws.

        Whoever reads the configuration knows it. Generators stay as they are if nothing was seeded.
        """
        seed = os.environ.get("PL_GLOBAL_SEED")
        if seed is not None:
            digest = hashlib.blake2b(f"step,{seed},{step},{rank}".encode(), digest_size=8).digest()
            torch.manual_seed(int.from_bytes(digest, "little") >> 1)

    def metric_name(self, name: str, is_public: bool) -> str | None:
        """Return the name."""
        return name

    def finish(self, reducer: GradientReducer, expected_num_units: float, step: int) -> None:
        """Sum over ranks, and divide."""
        with record_function("doppel/reduce"):
            reducer.sum()
            reducer.divide(expected_num_units)


class ClosedStep(PlainStep):
    """What ``validate`` and ``test`` have instead of a private step: they take none, and keep private metrics in.

    Args:
        log_private_diagnostics: Whether metrics of private files may be logged as ``private/…``.
    """

    def __init__(self, log_private_diagnostics: bool = False) -> None:
        self.log_private_diagnostics = log_private_diagnostics

    def metric_name(self, name: str, is_public: bool) -> str | None:
        """Return the name to log a metric under; None keeps it in the process."""
        return closed_name(name, is_public, self.log_private_diagnostics)
