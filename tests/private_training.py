"""A private training of a tiny model, and the run folder that it leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from callbacks.differential_privacy import DifferentialPrivacy
from datamodules.dialogue_data_module import DialogueDataModule
from doppel.privacy.spec import PrivacyArguments
from lightning_modules.causal_lm import UtteranceLM

#: Of a run folder: the checkpoint after six of ten steps.
STEP_6 = "fit/checkpoints/step=6.ckpt"


def sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.5)


class Crash(Exception):
    """The process ends here."""


class CrashAt(Callback):
    """Ends a training before the batch of a step, counted from 0."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step == self.step:
            raise Crash("crash")


def privacy(folder: Path, **kwargs: Any) -> DifferentialPrivacy:
    settings = {"target_epsilon": 8.0, "max_grad_norm": 0.1, "accountant": "rdp", "seed": 5, "stage": "fit"}
    settings["ledger_path"] = str(folder / "ledger.jsonl")
    return DifferentialPrivacy(PrivacyArguments(**(settings | kwargs)))


def data_module(corpus: str, **kwargs: Any) -> DialogueDataModule:
    given = {"train_path": corpus, "unit": "utterance", "batch_size": 12, "sampling_seed": 3}
    return DialogueDataModule(**(given | kwargs))


def fit(
    folder: Path,
    model: Any,
    data: LightningDataModule,
    callbacks: list[Callback],
    max_epochs: int = 2,
    ckpt_path: str | None = None,
    **kwargs: Any,
) -> Trainer:
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=max_epochs,
        callbacks=callbacks,
        default_root_dir=folder,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        use_distributed_sampler=False,
        **({"logger": False, "enable_checkpointing": False, "enable_progress_bar": False} | kwargs),
    )
    trainer.fit(model, data, ckpt_path=ckpt_path)
    return trainer


def write_private_run(run: Path, tiny_model: str, corpus: str) -> None:
    """Write a run folder of ten private steps with AdamW: its ledger, and checkpoints after 3, 6, 9 and 10 steps."""
    stage = run / "fit"
    keeper = ModelCheckpoint(stage / "checkpoints", "{step}", every_n_train_steps=3, save_top_k=-1)
    model = UtteranceLM(base_model=tiny_model, optimizer=torch.optim.AdamW)
    data = data_module(corpus, sampling_seed=None)
    trainer = fit(stage, model, data, [privacy(run, seed=None), keeper], enable_checkpointing=True)
    trainer.save_checkpoint(stage / "checkpoints" / "last.ckpt")


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])
