"""The attacker lets exact figures of private data choose what is released, and when the training ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from private_training import data_module, fit, privacy

from callbacks.differential_privacy import PrivateTrainingError
from doppel.privacy.ledger import Ledger
from lightning_modules.causal_lm import UtteranceLM

pytestmark = pytest.mark.filterwarnings("ignore")


def train(folder: Path, model: str, corpus: str, callbacks: list[Callback], **kwargs: Any) -> None:
    val_is_public = kwargs.pop("val_is_public", False)
    val_path = "embedded:val?num=20&seed=3" if val_is_public else corpus
    data = data_module(corpus, val_path=val_path, sampling_seed=None, val_is_public=val_is_public)
    terms = privacy(folder, seed=None, log_private_diagnostics=kwargs.pop("log_private_diagnostics", True))
    lm = UtteranceLM(base_model=model, **kwargs)
    fit(folder, lm, data, [terms, *callbacks], max_epochs=1, enable_checkpointing=True)


class Chooser(Callback):
    """Any callback that says what it goes by."""

    monitor = "private/train_loss"


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (
            lambda folder: EarlyStopping("private/val_loss"),
            "EarlyStopping.*'private/val_loss', an exact private figure",
        ),
        (
            lambda folder: ModelCheckpoint(folder, monitor="private/val_loss"),
            "ModelCheckpoint.*an exact private figure",
        ),
        (lambda folder: Chooser(), "Chooser.*'private/train_loss', an exact private figure"),
        (lambda folder: EarlyStopping("val/loss"), "EarlyStopping.*'val/loss'.*not declared public"),
        (lambda folder: ModelCheckpoint(folder, monitor="train/loss"), "ModelCheckpoint.*loss of private data"),
    ],
)
def test_a_private_figure_chooses_nothing(tmp_path: Path, tiny_model: str, corpus: str, make: Any, why: str) -> None:
    with pytest.raises(PrivateTrainingError, match=why):
        train(tmp_path, tiny_model, corpus, [make(tmp_path)])
    assert not (tmp_path / "ledger.jsonl").exists(), "nothing is spent for it"


def test_a_figure_of_a_public_file_may_choose(tmp_path: Path, tiny_model: str, corpus: str) -> None:
    train(tmp_path, tiny_model, corpus, [EarlyStopping("val/loss", check_on_train_epoch_end=False)], val_is_public=True)
    assert Ledger(tmp_path / "ledger.jsonl").summary()["scopes"]["default"]["steps_done"] == 5


def test_a_learning_rate_follows_no_metric(tmp_path: Path, tiny_model: str, corpus: str) -> None:
    with pytest.raises(PrivateTrainingError, match="ReduceLROnPlateau"):
        train(tmp_path, tiny_model, corpus, [], lr_scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau)
    assert Ledger(tmp_path / "ledger.jsonl").summary()["scopes"]["default"]["steps_done"] == 0


def test_a_sweep_sees_no_private_figure(
    tmp_path: Path, tiny_model: str, corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_SWEEP_ID", "abc")
    with pytest.raises(PrivateTrainingError, match="sweep.*log_private_diagnostics"):
        train(tmp_path, tiny_model, corpus, [])
    train(tmp_path, tiny_model, corpus, [], log_private_diagnostics=False)
