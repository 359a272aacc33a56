"""Saves and requeues a run that is about to be stopped."""

from __future__ import annotations

import logging
import math
import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_info

from callbacks.closed_loggers import opened
from callbacks.differential_privacy import DifferentialPrivacy
from callbacks.slurm_job import SlurmJob
from doppel.console.again import EXIT_STATUS
from doppel.errors import UserError
from doppel.files import to_disk
from lightning_modules.training.logical_batch_module import LogicalBatchModule

log = logging.getLogger(__name__)

INTERRUPTED = 130
#: What stops a run.
_SIGNALS = (signal.SIGUSR2, signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)
#: Seconds until a run has to save: SLURM kills 30 s after SIGTERM, and 120 s or more after the SIGUSR2 of our jobs.
_NOTICE, _LONG_NOTICE = 20.0, 60.0


class Preempted(SystemExit):
    """The run is on disk and ends here; the same command with ``--ckpt_path last`` goes on."""


class Preemption(Checkpoint):
    """Saves, requeues and ends a run that gets SIGUSR2, SIGUSR1, SIGTERM or Ctrl-C, at the end of the step it is in.

    A signal only sets a flag. At the end of each step all ranks agree whether one was signalled (an all-reduce of one
    number). If so they save ``last.ckpt``, rank 0 asks SLURM to requeue the job unless its user cancelled it, and the
    process ends with status 75 (other ranks with 0). A signal ahead of the first step ends the run before that step is
    spent; Ctrl-C requeues nothing and ends a training with status 130, a second one at once. ``predict`` has every
    batch on disk. Where ``privacy.bands`` charges several steps together a run first takes the rest of them, if it can
    begin to save within 20 seconds, or 60 of SIGUSR2. With ``--ckpt_path last`` the same command goes on, in the middle
    of an epoch too. Lightning's own requeueing saves inside the signal handler, where noise may be added and not yet
    counted; ``cli.py`` switches it off.

    Formal guarantees:
        The checkpoint is written between two steps, when ledger entry, noise, parameters and counters of a step are
        all made, so the requeued run spends exactly the steps of an undisturbed one; with bands, those of a round more
        if it could not take the rest of one. A run that is killed before it
        could save goes back to an older checkpoint; its lost steps, one or a twentieth of a private training at most,
        stay in the ledger, so ε only grows. The clock says when a run is saved or stopped; how long a step takes may
        tell of its rows, which no ε covers.

    Args:
        every_n_minutes: Also save ``last.ckpt`` at the end of a step when the latest checkpoint is so old; 0: after
            each step; null: 10, and 1 where it holds fewer than 50 million weights. Beside the end of each epoch, and
            of each twentieth of the steps of a private training. The key ``save_every``.
    """

    def __init__(self, every_n_minutes: float | None = None) -> None:
        if every_n_minutes is not None and not every_n_minutes >= 0:
            raise UserError(f"save_every is {every_n_minutes}: give minutes, 0 for a checkpoint after each step")
        self.every_n_minutes = every_n_minutes
        self._minutes = 10.0
        self._saved_at = 0.0
        self._most_steps = math.inf  # between two checkpoints
        self._saved_step = 0
        self._has_trained = False
        self._previous: dict[signal.Signals, Any] = {}
        self._process: int | None = None
        self._is_signalled = False
        self._stop_by = math.inf  # once signalled
        self._slowest, self._step_ended = 0.0, 0.0  # seconds of a step, and when the last one ended
        self._private: DifferentialPrivacy | None = None
        self._is_interrupted = False
        self._is_over = False

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Refuse settings under which nothing could be saved; listen from here on, while data are being read too."""
        if stage not in ("fit", "predict") or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        if stage == "fit":
            self._keeper(trainer)
        self._is_over = self._is_signalled = self._is_interrupted = self._has_trained = False
        self._stop_by, self._slowest = math.inf, 0.0
        self._listen()

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leave if a signal came while data were read."""
        self._leave_before_a_step(trainer)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Listen alone: Lightning's handler of SIGTERM, set after ``setup``, talks to other ranks mid-step.

        Leave if a signal came since ``setup``: a step may take minutes, and would be spent.
        """
        # Of a small model a checkpoint costs nothing, and each step that a crash undoes stays spent.
        left_out = pl_module.left_out() if isinstance(pl_module, LogicalBatchModule) else frozenset()
        kept = sum(weights.numel() for name, weights in pl_module.named_parameters() if name not in left_out)
        usual = 1.0 if kept < 50_000_000 else 10.0
        self._minutes = usual if self.every_n_minutes is None else self.every_n_minutes
        self._saved_at, self._saved_step = time.monotonic(), trainer.global_step
        private = [own for own in trainer.callbacks if isinstance(own, DifferentialPrivacy)]  # type: ignore[attr-defined]
        self._private = private[0] if private else None
        self._most_steps = math.inf if self._private is None else self._private.saves_every
        self._step_ended = time.monotonic()
        if self._process is not None:
            self._listen(is_training=True)
        self._leave_before_a_step(trainer)

    def on_save_checkpoint(self, trainer: pl.Trainer, *_: Any) -> None:
        """Note that, whoever saves, the latest checkpoint is of now."""
        self._saved_at, self._saved_step = time.monotonic(), trainer.global_step

    def on_train_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Save the last steps where the keeper has not, as where it does so every third epoch: they are paid for.

        At the end of other epochs it would let ``last.ckpt`` be a link to an older checkpoint again.
        """
        if self._has_trained and self._keeper(trainer)._last_global_step_saved != trainer.global_step:
            self._save(trainer)

    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Listen alone, likewise."""
        if self._process is not None:
            self._listen()

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Save after a step if it is time to, and leave if any rank was signalled; checkpoints come last.

        Ranks agree by one all-reduce a step, and by a second one where some rank has a reason to save.
        """
        self._has_trained = not trainer.fast_dev_run  # type: ignore[attr-defined]
        left, now = 0 if self._private is None else self._private.left_of_round(trainer.global_step), time.monotonic()
        self._slowest, self._step_ended = max(self._slowest, now - self._step_ended), now
        is_due = now - self._saved_at >= 60 * self._minutes
        is_due |= trainer.global_step - self._saved_step >= self._most_steps
        stops = self._is_signalled and (not left or now + left * self._slowest > self._stop_by)
        if self._process is None or not trainer.strategy.reduce_boolean_decision(
            stops or (is_due and not left), all=False
        ):
            return
        path = self._save(trainer)
        if trainer.strategy.reduce_boolean_decision(stops, all=False):
            # A run, and a job that is requeued, go on by themselves.
            by_hand = "DOPPEL_RUN" not in os.environ and (self._is_interrupted or SlurmJob.current() is None)
            how = " The same command with --ckpt_path last resumes there." if by_hand else ""
            rank_zero_info(f"Preempted after step {trainer.global_step}: saved {path}.{how}")
            self._leave(trainer, is_speaker=trainer.is_global_zero)

    def on_predict_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Leave if this rank was signalled: the batch is on disk."""
        if self._is_signalled:
            rank_zero_info("Preempted: the samples so far are on disk.")
            if trainer.strategy.launcher is not None:  # this process started the others
                trainer.strategy.launcher.kill(signal.SIGTERM)
            self._leave(trainer, is_speaker=True)  # rank 0 may be done already, and wait for this one

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Restore the signals' handlers after a failure; after a preemption they must not end W&B's work."""
        self._is_over = not isinstance(exception, Preempted)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Put the handlers back that were there before."""
        for number, previous in self._previous.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, signal.SIG_DFL if previous is None else previous)
        self._previous, self._process = {}, None

    def _listen(self, is_training: bool = False) -> None:
        """Take the signals; Ctrl-C only while there is something to save."""
        if threading.current_thread() is not threading.main_thread():
            log.warning("Preemption: the training is not in the main thread, so signals cannot be caught")
            return
        self._process = os.getpid()
        for number in _SIGNALS:
            if number == signal.SIGINT and not is_training:
                continue
            self._previous.setdefault(number, signal.signal(number, self._handle))

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            return  # a forked process, which ends with this one
        if self._is_over or (self._is_interrupted and number == signal.SIGINT):
            signal.signal(number, self._previous[signal.Signals(number)] or signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self._is_signalled = True
        notice = _LONG_NOTICE if number in (signal.SIGUSR1, signal.SIGUSR2) else _NOTICE
        self._stop_by = min(self._stop_by, time.monotonic() + notice)
        self._is_interrupted |= number == signal.SIGINT

    def _keeper(self, trainer: pl.Trainer) -> ModelCheckpoint:
        for callback in trainer.checkpoint_callbacks:
            if isinstance(callback, ModelCheckpoint) and callback.save_last:
                return callback
        raise UserError(
            "Preemption saves the last.ckpt of a ModelCheckpoint, and there is none with save_last: add one to "
            "trainer.callbacks, as configs/trainer.yaml does, or leave Preemption out"
        )

    def _save(self, trainer: pl.Trainer) -> Path:
        """Write ``last.ckpt`` in one atomic step; what was there before stays whole until then."""
        keeper = self._keeper(trainer)
        name = f"{keeper.CHECKPOINT_NAME_LAST}{keeper.FILE_EXTENSION}"
        path = Path(keeper.last_model_path or Path(keeper.dirpath or trainer.default_root_dir) / name)
        keeper.last_model_path = str(path)  # saved with it: the resumed run replaces this file, and makes no second one
        part = path.with_name(f"{path.name}.part")
        trainer.save_checkpoint(part)
        if trainer.is_global_zero:
            to_disk(part)
            part.replace(path)
            to_disk(path.parent)
        trainer.strategy.barrier("preempted")
        return path

    def _leave_before_a_step(self, trainer: pl.Trainer) -> None:
        """No step of this fit was taken or spent, and checkpoints are as they were: there is nothing to save."""
        if self._process is not None and trainer.strategy.reduce_boolean_decision(self._is_signalled, all=False):
            rank_zero_info("Preempted before the first step: nothing was spent, and the same command goes on.")
            self._leave(trainer, is_speaker=trainer.is_global_zero)

    def _leave(self, trainer: pl.Trainer, is_speaker: bool) -> None:
        job = SlurmJob.current()
        if is_speaker and job is not None and not self._is_interrupted:
            if why_not := job.requeue():
                log.warning("SLURM job %s is not requeued: %s. Submit it again to go on.", job, why_not)
            else:
                rank_zero_info(f"Requeued SLURM job {job}.")
        if trainer.is_global_zero:
            for logger in map(opened, trainer.loggers):
                if isinstance(logger, WandbLogger):
                    logger.experiment.mark_preempting()
        status = EXIT_STATUS if trainer.is_global_zero or trainer.predicting else 0
        raise Preempted(INTERRUPTED if self._is_interrupted else status)
