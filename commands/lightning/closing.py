"""What a finished stage tells: where its model is, what was spent, what to run next."""

from __future__ import annotations

import os
from pathlib import Path

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_info

from callbacks.differential_privacy import DifferentialPrivacy
from commands.pipeline.by_hand import predict_command


def close(trainer: Trainer) -> None:
    """Say it, after a ``fit`` that came to its end."""
    kept = [c.last_model_path for c in trainer.checkpoint_callbacks if isinstance(c, ModelCheckpoint)]
    if not trainer.state.finished or not any(kept):
        return
    model = Path(next(filter(None, kept)))
    stage = Path(trainer.default_root_dir)
    rank_zero_info(f"model: {model}")
    if any(isinstance(callback, DifferentialPrivacy) for callback in trainer.callbacks):  # type: ignore[attr-defined]
        rank_zero_info(f"all that was spent: python cli.py ledger {stage.parent}")
    if not (stage / "config.yaml").is_file() or "DOPPEL_RUN" in os.environ:  # a run goes on by itself
        return
    run = stage.parent
    if (run / "experiment.yaml").is_file():
        rank_zero_info(
            f"next: python cli.py run {run / 'experiment.yaml'} {run}; more samples: python cli.py sample {run}"
        )
    else:
        rank_zero_info(f"next: {predict_command(stage, hasattr(trainer.lightning_module, 'sampling'))}")
