"""Accidents that cost budget and leave no model: Ctrl-C, a crash in an epoch, two runs in a folder, a full disk."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from private_training import data_module, fit, privacy
from signals import SignalAt

import cli
from callbacks import preemption
from callbacks.preemption import INTERRUPTED, Preempted, Preemption
from commands.runs import run_folder
from doppel.errors import UserError
from doppel.privacy.ledger import Ledger
from lightning_modules.causal_lm import UtteranceLM

pytestmark = pytest.mark.filterwarnings("ignore")
ROOT = Path(__file__).resolve().parents[3]


def train(folder: Path, tiny_model: str, corpus: str, *extra: Callback, every_n_minutes: float = 10.0) -> Path:
    """A private run of ten steps, five in an epoch; its last.ckpt."""
    keeper = ModelCheckpoint(folder / "checkpoints", "{step}", every_n_epochs=1, save_last="link")
    callbacks = [keeper, Preemption(every_n_minutes=every_n_minutes), privacy(folder), *extra]
    fit(folder, UtteranceLM(base_model=tiny_model), data_module(corpus), callbacks, enable_checkpointing=True)
    return folder / "checkpoints" / "last.ckpt"


def done_steps(folder: Path) -> int:
    return int(Ledger(folder / "ledger.jsonl").summary()["mechanisms"][0]["done_steps"])


def steps_of(folder: Path) -> int:
    return int(torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["global_step"])


class CrashAt(Callback):
    """Dies in a step, counted from 0."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step == self.step:
            raise RuntimeError("crash")


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """No process can write more into a file, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_ctrl_c_saves_at_the_end_of_the_step(tmp_path: Path, tiny_model: str, corpus: str) -> None:
    with pytest.raises(Preempted) as left:
        train(tmp_path, tiny_model, corpus, SignalAt(7, "SIGINT"))
    assert left.value.code == INTERRUPTED == 130
    assert steps_of(tmp_path) == done_steps(tmp_path) == 8


def test_a_crash_costs_no_more_than_the_steps_since_the_last_checkpoint_that_was_asked_for(
    tmp_path: Path, tiny_model: str, corpus: str
) -> None:
    with pytest.raises(RuntimeError, match="crash"):
        train(tmp_path, tiny_model, corpus, CrashAt(4), every_n_minutes=0)
    assert steps_of(tmp_path) == 4


def test_a_training_of_slow_steps_saves_within_an_epoch(
    tmp_path: Path, tiny_model: str, corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class SixMinutesAStep(Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            now[0] += 360

    now = [0.0]
    monkeypatch.setattr(preemption, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with pytest.raises(RuntimeError, match="crash"):
        train(tmp_path, tiny_model, corpus, SixMinutesAStep(), CrashAt(3))
    assert steps_of(tmp_path) == 2, "of ten minutes by default; the epoch has five steps"


def test_a_disk_that_is_full_costs_nothing(tmp_path: Path, tiny_model: str, corpus: str) -> None:
    whole = train(tmp_path / "whole", tiny_model, corpus).stat().st_size
    weights = sum(p.numel() for p in UtteranceLM(base_model=tiny_model).parameters()) * 4
    for size in (weights // 2, weights * 2):  # room for no checkpoint; for weights, but not for the optimiser's state
        folder = tmp_path / str(size)
        assert size < whole
        with files_of_at_most(size), pytest.raises(UserError, match=str(folder / "checkpoints")):
            train(folder, tiny_model, corpus)
        assert done_steps(folder) == 0 and not list((folder / "checkpoints").iterdir())


def test_a_folder_in_use_takes_no_second_training(
    tmp_path: Path, tiny_model: str, corpus: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["cli.py"])
    monkeypatch.setattr(run_folder, "_PATIENCE", 0)
    command = ["fit", f"--config={ROOT}/configs/utterance_lm.yaml", f"--model.init_args.base_model={tiny_model}"]
    command += ["--data=datamodules.dialogue_data_module.DialogueDataModule", f"--run_dir={tmp_path}/run/one_stage"]
    command += [f"--data.init_args.train_path={corpus}", "--data.init_args.unit=utterance"]
    command += ["--data.init_args.batch_size=30", "--trainer.logger=false"]
    command += ["--privacy.target_epsilon=8", "--privacy.accountant=rdp", "--trainer.accelerator=cpu"]
    (tmp_path / "run" / "one_stage").mkdir(parents=True)
    lock = run_folder.hold(tmp_path / "run" / "one_stage")
    assert cli.main([*command, "--trainer.max_epochs=1"]) == 2
    assert "in use" in capsys.readouterr().err and not (tmp_path / "run" / "ledger.jsonl").exists()
    lock.release()
    assert cli.main([*command, "--trainer.max_epochs=1", "--save_every=0"]) == 0
    run_folder.hold(tmp_path / "run" / "one_stage").release()


def test_a_run_in_use_takes_no_second_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_folder, "_PATIENCE", 0)
    lock = run_folder.hold(tmp_path)
    assert cli.main(["run", str(ROOT / "configs/experiments/quickstart.yaml"), str(tmp_path), "--local"]) == 2
    assert "in use" in capsys.readouterr().err and not (tmp_path / "configs").exists()
    lock.release()
