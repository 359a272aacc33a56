"""What a finished stage tells: where its model is, what was spent, what to run next."""

from __future__ import annotations

import os
from pathlib import Path

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_info

from callbacks.differential_privacy import DifferentialPrivacy


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
    config = stage / "config.yaml"
    if config.is_file() and "DOPPEL_RUN" not in os.environ:  # a run goes on by itself
        rank_zero_info(
            f"next: python cli.py predict --config {config} --config {_overlay(trainer)} --ckpt_path {model} --run_dir "
            f"{stage.parent / f'sample_{stage.name}'}"
        )


def _overlay(trainer: Trainer) -> str:
    """The overlay with which a model writes: texts if it samples, else trees of given utterances."""
    configs = Path(__file__).parents[2] / "configs"
    name = "sample.yaml" if hasattr(trainer.lightning_module, "sampling") else "annotate.yaml"
    found = next(configs.rglob(name), configs / name)
    return str(found.relative_to(Path.cwd())) if found.is_relative_to(Path.cwd()) else str(found)
