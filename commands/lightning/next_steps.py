"""What a finished stage tells: where its model is, what was spent, what to run next."""

from __future__ import annotations

import os
from pathlib import Path

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.model_helpers import is_overridden

from callbacks.differential_privacy import DifferentialPrivacy
from commands.lightning.by_hand import predict_command
from commands.run_folder.places import ROOT
from doppel.run_folder import run_of
from lightning_modules.training.logical_batch_module import LogicalBatchModule


def close(trainer: Trainer) -> None:
    """Say it, after a ``fit`` that came to its end and is no step of a run."""
    kept = [c.last_model_path for c in trainer.checkpoint_callbacks if isinstance(c, ModelCheckpoint)]
    if not trainer.state.finished or not any(kept) or "DOPPEL_RUN" in os.environ:  # a run ends with lines of its own
        return
    model = Path(next(filter(None, kept)))
    stage = Path(trainer.default_root_dir)
    rank_zero_info(f"model: {model}")
    if is_own(trainer.lightning_module) or not is_overridden("predict_step", trainer.lightning_module):
        for line in _next_of_measured(trainer, stage, model):
            rank_zero_info(line)
        return
    if any(isinstance(callback, DifferentialPrivacy) for callback in trainer.callbacks):  # type: ignore[attr-defined]
        rank_zero_info(f"all that was spent: python cli.py ledger {run_of(stage)}")
    if not (stage / "config.yaml").is_file():
        return
    run = run_of(stage)
    if (run / "experiment.yaml").is_file():
        rank_zero_info(
            f"next: python cli.py run {run / 'experiment.yaml'} {run}; more samples: python cli.py sample {run}"
        )
    else:
        rank_zero_info(f"next: {predict_command(stage, hasattr(trainer.lightning_module, 'sampling'))}")


def is_own(module: object) -> bool:
    """Return whether a model is a user's own, not derived from one that samples or annotates."""
    kinds = [kind for kind in type(module).__mro__ if kind is not LogicalBatchModule]
    return not any(kind.__module__.startswith("lightning_modules.") for kind in kinds)


def _next_of_measured(trainer: Trainer, stage: Path, model: Path) -> list[str]:
    """What to do with a model that writes nothing, or one of one's own: what it was trained on says what can be
    measured."""
    call = "python cli.py" if Path("cli.py").is_file() else f"python {ROOT / 'cli.py'}"
    config, data, lines = stage / "config.yaml", trainer.datamodule, []  # type: ignore[attr-defined]
    is_private = any(isinstance(callback, DifferentialPrivacy) for callback in trainer.callbacks)  # type: ignore[attr-defined]
    if is_private:
        lines.append(f"all that was spent: {call} ledger {run_of(stage)}")
    if not config.is_file():
        return lines
    for verb, name in {"validate": "val", "test": "test"}.items():
        is_told = getattr(data, f"{name}_is_public", True)
        if is_told and is_overridden(f"{name}_dataloader", data) and getattr(data, f"{name}_dataloader")():
            place = stage.parent / f"{verb}_{stage.name}"
            lines.append(f"next: {call} {verb} --config {config} --ckpt_path {model} --run_dir {place}")
    lines.append(f"next: {call} export {stage} {stage.parent}-release")
    return lines
