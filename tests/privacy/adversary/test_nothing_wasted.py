"""Accidents that cost budget and leave no model: Ctrl-C, a crash in an epoch, two runs in a folder, a full disk."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from private_training import Crash, CrashAt, data_module, fit, privacy
from signals import SignalAt

import cli
from callbacks import preemption
from callbacks.preemption import INTERRUPTED, Preempted, Preemption
from commands.lightning.stage_folder import last_checkpoint
from commands.run_folder import ownership
from doppel.errors import UserError
from doppel.files import sha256_of
from doppel.privacy.ledger import Ledger
from doppel.privacy.session import checkpoint_every
from lightning_modules.causal_lm import UtteranceLM

pytestmark = pytest.mark.filterwarnings("ignore")
ROOT = Path(__file__).resolve().parents[3]


def train(
    folder: Path, tiny_model: str, corpus: str, *extra: Callback, every_n_minutes: float = 10.0, max_epochs: int = 2
) -> Path:
    """A private run of ten steps, five in an epoch, or what of it is left; its last.ckpt."""
    keeper = ModelCheckpoint(folder / "checkpoints", "{step}", every_n_epochs=1, save_last="link")
    callbacks = [keeper, Preemption(every_n_minutes=every_n_minutes), privacy(folder), *extra]
    options: dict[str, Any] = {"max_epochs": max_epochs, "ckpt_path": last_checkpoint(folder)}
    adamw = partial(torch.optim.AdamW, lr=2e-3)  # whose checkpoints are as large as is reckoned with
    model, data = UtteranceLM(base_model=tiny_model, optimizer=adamw), data_module(corpus)
    assert fit(folder, model, data, callbacks, enable_checkpointing=True, **options).state.finished
    return folder / "checkpoints" / "last.ckpt"


def done_steps(folder: Path) -> int:
    return int(Ledger(folder / "ledger.jsonl").summary()["mechanisms"][0]["done_steps"])


def steps_of(folder: Path) -> int:
    return int(torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["global_step"])


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
    with pytest.raises(Crash, match="crash"):
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
    with pytest.raises(Crash, match="crash"):
        train(tmp_path, tiny_model, corpus, SixMinutesAStep(), CrashAt(3), max_epochs=16)
    assert steps_of(tmp_path) == 2, "of ten minutes by default; the epoch has five steps, a twentieth of all has four"


@pytest.mark.parametrize(("crash", "kept"), [(3, 0), (8, 5)])
def test_a_crash_costs_at_most_a_twentieth_of_the_steps(
    tmp_path: Path, tiny_model: str, corpus: str, crash: int, kept: int
) -> None:
    with pytest.raises(Crash, match="crash"):
        train(tmp_path, tiny_model, corpus, CrashAt(crash), max_epochs=16)
    assert (steps_of(tmp_path) if kept else 0) == kept and done_steps(tmp_path) == crash + 1
    assert last_checkpoint(tmp_path) is not None or not kept
    assert crash - kept < checkpoint_every(80) == 4


def test_a_disk_that_is_full_costs_nothing(tmp_path: Path, tiny_model: str, corpus: str) -> None:
    whole = train(tmp_path / "whole", tiny_model, corpus).stat().st_size
    weights = sum(p.numel() for p in UtteranceLM(base_model=tiny_model).parameters()) * 4
    for size in (weights // 2, weights * 2):  # room for no checkpoint; for weights, but not for the optimiser's state
        folder = tmp_path / str(size)
        assert size < whole
        with files_of_at_most(size), pytest.raises(UserError, match=str(folder / "checkpoints")):
            train(folder, tiny_model, corpus)
        assert done_steps(folder) == 0 and not list((folder / "checkpoints").iterdir())


@contextmanager
def disk(folder: Path, size: int) -> Iterator[None]:
    """A disk of so many bytes; the test is skipped where none may be mounted."""
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("no disk may be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


class FillsTheDisk(Callback):
    """Another program takes all that is free, while the second step runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        with suppress(OSError), open(self.folder / f"filler{trainer.global_step}", "wb", buffering=0) as file:
            while trainer.global_step >= 2:
                file.write(bytes(4096))


@pytest.mark.slow
@pytest.mark.parametrize("is_ledger_there", [False, True])
def test_a_disk_that_others_fill_leaves_every_paid_step_in_a_checkpoint(
    tmp_path: Path, tiny_model: str, corpus: str, is_ledger_there: bool
) -> None:
    one = train(tmp_path / "whole", tiny_model, corpus).stat().st_size
    folder = tmp_path / "run"
    with disk(folder, 3 * one + 2**22):  # two, and what the ledger and the margins take
        if not is_ledger_there:
            (tmp_path / "ledger.jsonl").touch()
            (folder / "ledger.jsonl").symlink_to(tmp_path / "ledger.jsonl")
        with pytest.raises(UserError, match="No space left"):
            train(folder, tiny_model, corpus, FillsTheDisk(folder))
        assert steps_of(folder) == done_steps(folder) >= 2
        assert {path.name for path in (folder / "checkpoints").iterdir()} <= {"last.ckpt", "step=5.ckpt"}
        for filler in folder.glob("filler*"):
            filler.unlink()
        train(folder, tiny_model, corpus)
        assert steps_of(folder) == done_steps(folder) == 10


def test_no_step_is_paid_whose_checkpoint_has_no_room(
    tmp_path: Path, tiny_model: str, corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: list[int] = []

    def full(_: int, start: int, size: int) -> None:
        wanted.append(size)
        if len(wanted) > 3:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(UserError, match=f"{tmp_path}/checkpoints .*free some space"):
        train(tmp_path, tiny_model, corpus)
    assert steps_of(tmp_path) == done_steps(tmp_path) == 3, "it ends before the step that it has no room for"
    size = (tmp_path / "checkpoints" / "last.ckpt").stat().st_size
    assert wanted[0] > 2 * size and size < wanted[1] == wanted[2] < 2 * size + 2**20, "room for two, then for one more"


def test_a_folder_in_use_takes_no_second_training(
    tmp_path: Path, tiny_model: str, corpus: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["cli.py"])
    monkeypatch.setattr(ownership, "_PATIENCE", 0)
    command = ["fit", f"--config={ROOT}/configs/utterance_lm.yaml", f"--model.init_args.base_model={tiny_model}"]
    command += ["--data=datamodules.dialogue_data_module.DialogueDataModule", f"--run_dir={tmp_path}/run/one_stage"]
    command += [f"--data.init_args.train_path={corpus}", "--data.init_args.unit=utterance"]
    command += ["--data.init_args.batch_size=30", "--trainer.logger=false"]
    command += ["--privacy.target_epsilon=8", "--privacy.accountant=rdp", "--trainer.accelerator=cpu"]
    (tmp_path / "run" / "one_stage").mkdir(parents=True)
    lock = ownership.hold(tmp_path / "run" / "one_stage")
    assert cli.main([*command, "--trainer.max_epochs=1"]) == 2
    assert "in use" in capsys.readouterr().err and not (tmp_path / "run" / "ledger.jsonl").exists()
    lock.release()
    assert cli.main([*command, "--trainer.max_epochs=1", "--save_every=0"]) == 0
    ownership.hold(tmp_path / "run" / "one_stage").release()


@pytest.mark.slow
def test_a_run_in_use_takes_no_second_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ownership, "_PATIENCE", 0)
    lock = ownership.hold(tmp_path)
    assert cli.main(["run", str(ROOT / "configs/experiments/quickstart.yaml"), str(tmp_path), "--local"]) == 2
    assert "in use" in capsys.readouterr().err and not (tmp_path / "configs").exists()
    lock.release()


@pytest.mark.parametrize("left", ["last", "dangling", "none"])
def test_a_crash_after_the_last_paid_step_ends_the_training_as_finished(
    tmp_path: Path, tiny_model: str, corpus: str, left: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Ten of ten steps are paid, nine are kept; and Lightning has a moment without the link that it sets anew."""
    with pytest.raises(Crash, match="crash"):
        train(tmp_path, tiny_model, corpus, CrashAt(9))
    last = tmp_path / "checkpoints" / "last.ckpt"
    if left != "last":
        last.replace(last.with_name("step=9.ckpt"))
        (last.with_name("step=5.ckpt")).unlink()
    if left == "dangling":
        last.symlink_to("step=5.ckpt")
    for _ in range(2):
        assert train(tmp_path, tiny_model, corpus) == last
        assert steps_of(tmp_path) == 9 and done_steps(tmp_path) == 10
        ledger = Ledger(tmp_path / "ledger.jsonl")
        assert ledger.unpaid_reason(sha256_of(last), "default") is None and ledger.epsilon("default") <= 8.0
    assert "1 steps remain but the budget affords 0" in caplog.text
