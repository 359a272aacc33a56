"""Ties the Weights & Biases runs of a pipeline together: which model and which prompts a file came from."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint
from lightning.pytorch.loggers import WandbLogger

from callbacks.closed_loggers import opened
from callbacks.differential_privacy import DifferentialPrivacy
from callbacks.synthetic_writer import SyntheticWriter
from callbacks.wandb_artifacts import artifact, harmless, use_artifact
from datamodules.batches.batch import LogicalBatch, MicroBatch
from datamodules.private_data import is_disclosable
from lightning_modules.training.logical_batch_module import LogicalBatchModule

if TYPE_CHECKING:
    from wandb.sdk.wandb_run import Run


class WandbLineage(Checkpoint):
    """Records the checkpoint of a fit and the file of a ``predict`` as W&B artifacts, with what they came from.

    A finished fit logs its ``last.ckpt``; a finished ``predict`` uses the checkpoint and the prompts, if a ``predict``
    wrote those too, and logs its file. By default an artifact is a place and a checksum, and the files stay where they
    are. Without a WandbLogger nothing happens.

    *Privacy.* Artifacts are weights and samples that a model released. Training data are none, nor are their checksums,
    which tell whether a guess of the data is right, nor is what was written of private text
    (:func:`~datamodules.data_module.is_disclosable`).

    Args:
        upload: Send the files too, and not only where they are and what their checksum is.
    """

    def __init__(self, upload: bool = False) -> None:
        self.upload = upload
        self._since, self._units, self._tokens = 0.0, 0.0, 0  # since the pace was told

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Let what was spent be drawn over the optimiser's steps."""
        for run in _runs(trainer):
            run.define_metric("dp/*", step_metric="trainer/global_step", step_sync=True)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Tell the optimiser, which may be the default; begin to measure the pace."""
        self._begin_pace()
        for run in _runs(trainer):
            for optimizer in trainer.optimizers:
                told = {
                    key: value for key, value in optimizer.defaults.items() if isinstance(value, int | float | tuple)
                }
                name = {"optimizer": type(optimizer).__name__}
                run.config.update(name | {f"optimizer_{key}": v for key, v in told.items()}, allow_val_change=True)

    def _begin_pace(self) -> None:
        self._since, self._units, self._tokens = time.monotonic(), 0.0, 0

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Tell the pace since the last time: of the expected units, and of tokens with padding where rows are public.

        Formal guarantees:
            How many units and tokens a private batch has is not told. The time that it took is, as by W&B's own clock.
        """
        if not isinstance(batch, LogicalBatch) or not isinstance(pl_module, LogicalBatchModule):
            return
        self._units += batch.expected_num_units
        self._tokens += (
            sum(part.input_ids.numel() for part in batch.micro_batches if isinstance(part, MicroBatch))
            * trainer.world_size
        )
        if trainer.global_step % trainer.log_every_n_steps:  # type: ignore[attr-defined]
            return
        seconds = max(time.monotonic() - self._since, 1e-9)
        pl_module.log_metric("train/units_per_second", self._units / seconds, is_public=True)
        if self._tokens:
            pl_module.log_metric("train/tokens_per_second", self._tokens / seconds, batch.is_public)
        self._begin_pace()

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the model."""
        with harmless():
            for run in _runs(trainer):
                for callback in trainer.checkpoint_callbacks:
                    path = Path(callback.last_model_path) if isinstance(callback, ModelCheckpoint) else Path()
                    if path.is_file():
                        facts = {"global_step": trainer.global_step, "privacy": _privacy(trainer)}
                        run.log_artifact(artifact(path, "model", facts, self.upload))

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Log the samples, which the writer has merged by now: checkpoint callbacks come after all others."""
        writer = next((c for c in trainer.callbacks if isinstance(c, SyntheticWriter)), None)  # type: ignore
        is_told = is_disclosable(trainer.datamodule)  # type: ignore[attr-defined]
        if stage != "predict" or writer is None or not is_told or not writer.output_path.is_file():
            return
        with harmless():
            for run in _runs(trainer):
                checkpoint = Path(trainer.ckpt_path or "")
                if checkpoint.is_file():
                    use_artifact(run, artifact(checkpoint, "model", upload=self.upload))
                prompts = getattr(trainer.datamodule, "prompts_path", None)  # type: ignore[attr-defined]
                if prompts is not None and Path(f"{prompts}.metrics.json").is_file():  # a SyntheticWriter wrote it
                    use_artifact(run, artifact(Path(prompts), "synthetic", upload=self.upload))
                facts = {"stage": writer.stage}
                run.log_artifact(artifact(writer.output_path, "synthetic", facts, self.upload))


def _runs(trainer: pl.Trainer) -> list[Run]:
    """W&B runs of this process: those of rank 0."""
    loggers = trainer.loggers if trainer.is_global_zero else []
    return [logger.experiment for logger in map(opened, loggers) if isinstance(logger, WandbLogger)]


def _privacy(trainer: pl.Trainer) -> dict[str, Any] | None:
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, DifferentialPrivacy) and callback.spec is not None:
            return {**callback.spec.to_dict(), "scope": callback.privacy.scope}
    return None
