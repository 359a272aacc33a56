"""The attacker lets exact figures of private data choose what is released, and when the training ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import (
    Callback,
    EarlyStopping,
    GradientAccumulationScheduler,
    ModelCheckpoint,
    ModelPruning,
)
from private_training import Crash, CrashAt, data_module, fit, privacy, sgd

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


class Several(UtteranceLM):
    """Gives what ``given`` makes of its weights."""

    given: Any = None

    def configure_optimizers(self) -> Any:
        return self.given(list(self.parameters()))


def lbfgs(weights: Any) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(weights)


def two(weights: list[Any]) -> Any:
    return [torch.optim.SGD(weights[:1], lr=0.1), torch.optim.SGD(weights[1:], lr=0.1)]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (lbfgs, "LBFGS computes the loss again within a step"),
        (two, "gives 2 optimisers and no schedules: a logical batch is one step of one"),
        (lambda weights: None, "gives no optimisers"),
        (
            lambda weights: {
                "optimizer": (own := torch.optim.SGD(weights, lr=0.1)),
                "lr_scheduler": {"scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(own), "monitor": "x"},
            },
            "ReduceLROnPlateau",
        ),
    ],
)
def test_what_takes_no_step_of_a_logical_batch_is_refused_before_the_first(
    tmp_path: Path, tiny_model: str, corpus: str, given: Any, why: str
) -> None:
    lm = Several(base_model=tiny_model)
    lm.given = given
    with pytest.raises(PrivateTrainingError, match=why):
        fit(tmp_path, lm, data_module(corpus, sampling_seed=None), [privacy(tmp_path, seed=None)])
    ledger = tmp_path / "ledger.jsonl"
    assert not ledger.exists() or Ledger(ledger).summary()["scopes"]["default"]["steps_done"] == 0


def test_another_optimiser_than_the_checkpoints_is_named_before_a_step_is_charged(
    tmp_path: Path, tiny_model: str, corpus: str
) -> None:
    def go(optimizer: Any, epochs: int, ckpt_path: str | None = None) -> None:
        lm, data = UtteranceLM(base_model=tiny_model, optimizer=optimizer), data_module(corpus, sampling_seed=None)
        keeper = ModelCheckpoint(tmp_path / "kept", "{step}", every_n_train_steps=3, save_top_k=-1)
        terms = privacy(tmp_path, seed=None, epochs=[2])
        crash = [CrashAt(7)] if ckpt_path is None else []
        fit(tmp_path, lm, data, [terms, keeper, *crash], epochs, ckpt_path, enable_checkpointing=True)

    with pytest.raises(Crash):
        go(torch.optim.AdamW, 2)
    done = Ledger(tmp_path / "ledger.jsonl").summary()["scopes"]["default"]["steps_done"]
    with pytest.raises(PrivateTrainingError, match="another optimiser than SGD, whose"):
        go(sgd, 2, str(tmp_path / "kept" / "step=6.ckpt"))
    assert Ledger(tmp_path / "ledger.jsonl").summary()["scopes"]["default"]["steps_done"] == done


def test_callbacks_that_change_a_step_are_refused(tmp_path: Path, tiny_model: str, corpus: str) -> None:
    for callback in (ModelPruning("l1_unstructured", amount=0.5), GradientAccumulationScheduler({0: 2})):
        with pytest.raises(PrivateTrainingError, match=type(callback).__name__):
            train(tmp_path, tiny_model, corpus, [callback])
    assert not (tmp_path / "ledger.jsonl").exists()


def test_a_sweep_sees_no_private_figure(
    tmp_path: Path, tiny_model: str, corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_SWEEP_ID", "abc")
    with pytest.raises(PrivateTrainingError, match="sweep.*log_private_diagnostics"):
        train(tmp_path, tiny_model, corpus, [])
    train(tmp_path, tiny_model, corpus, [], log_private_diagnostics=False)
