"""A run that is told to stop: what is on disk, how it goes on, and whose folder it may go on in."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningDataModule, seed_everything
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from private_training import data_module, fit, privacy, weights
from signals import SignalAt
from tiny_sampling import NUM_SAMPLES, read, sample

import cli
from callbacks.preemption import Preempted, Preemption
from callbacks.slurm_job import SlurmJob
from commands.lightning.stage_folder import claim
from doppel.console.again import EXIT_STATUS
from doppel.errors import UserError
from doppel.privacy.ledger import Ledger
from doppel.privacy.noise import GaussianNoise
from lightning_modules.causal_lm import UtteranceLM
from lightning_modules.training.strategy import LogicalBatchDDPStrategy

pytestmark = pytest.mark.filterwarnings("ignore")
ROOT = Path(__file__).resolve().parents[2]
NUM_STEPS = 10  # two epochs of five


@pytest.fixture(autouse=True)
def _no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A batch job on a cluster whose commands write down how they are called; STATE is what `squeue` answers."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, answer in {"scontrol": "", "squeue": f"cat {tmp_path}/STATE"}.items():
        (tools / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {tmp_path}/calls\n{answer}\n')
        (tools / name).chmod(0o700)
    (tmp_path / "STATE").write_text("RUNNING\n")
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    job = {"JOB_ID": "4712", "ARRAY_JOB_ID": "4711", "ARRAY_TASK_ID": "3", "JOB_NAME": "fit", "NTASKS": "1"}
    for name, value in (job | {"PROCID": "0", "LOCALID": "0", "NODEID": "0"}).items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    yield tmp_path


def train(
    folder: Path,
    tiny_model: str,
    data: LightningDataModule,
    *extra: Callback,
    resume: bool = False,
    is_private: bool = True,
    **kwargs: Any,
) -> UtteranceLM:
    """A run with dropout, as ``configs/trainer.yaml`` sets it up, under the test seeds."""
    seed_everything(7)
    torch.rand(torch.seed() % 100)  # whatever was drawn before does not matter
    model = UtteranceLM(base_model=tiny_model, dropout=0.3)  # the optimiser's state must survive too
    keeper = ModelCheckpoint(
        folder / "checkpoints", "{step}", every_n_epochs=1, save_last="link", enable_version_counter=False
    )
    callbacks = [keeper, Preemption(), *([privacy(folder)] if is_private else []), *extra]
    fit(folder, model, data, callbacks, ckpt_path="last" if resume else None, enable_checkpointing=True, **kwargs)
    return model


def done_steps(folder: Path) -> int:
    return int(Ledger(folder / "ledger.jsonl").summary()["mechanisms"][0]["done_steps"])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, tiny_model: str, corpus: str) -> torch.Tensor:
    return weights(train(tmp_path_factory.mktemp("whole"), tiny_model, data_module(corpus)))


@pytest.mark.parametrize("steps", [(0, 7), (4,), (9,)], ids=str)
def test_a_preempted_run_ends_with_the_same_weights_and_budget(
    tmp_path: Path, tiny_model: str, corpus: str, undisturbed: torch.Tensor, steps: tuple[int, ...]
) -> None:
    last = tmp_path / "checkpoints" / "last.ckpt"
    for number, step in enumerate(steps):
        before = signal.getsignal(signal.SIGTERM)
        with pytest.raises(Preempted) as left:
            name = "SIGTERM" if step == 7 else "SIGUSR1"
            train(tmp_path, tiny_model, data_module(corpus), SignalAt(step, name), resume=number > 0)
        assert left.value.code == EXIT_STATUS == 75
        assert torch.load(last, weights_only=True)["global_step"] == done_steps(tmp_path) == step + 1
        for handled in (signal.SIGUSR1, signal.SIGTERM):
            signal.signal(handled, before)
    resumed = train(tmp_path, tiny_model, data_module(corpus), resume=True)
    assert torch.equal(weights(resumed), undisturbed)
    assert done_steps(tmp_path) == NUM_STEPS
    assert torch.load(last, weights_only=True)["global_step"] == NUM_STEPS
    assert {path.name for path in last.parent.iterdir()} <= {"last.ckpt", "step=5.ckpt", "step=10.ckpt"}
    assert signal.getsignal(signal.SIGTERM) == before


def test_the_last_step_is_kept_where_no_epoch_ends_with_a_checkpoint(
    tmp_path: Path, tiny_model: str, corpus: str
) -> None:
    """Lightning leaves the checkpoint of an earlier epoch, or none: steps that are paid for, and in no file."""
    last = tmp_path / "checkpoints" / "last.ckpt"
    keeper = ModelCheckpoint(
        last.parent, "{step}", every_n_train_steps=3, save_last="link", enable_version_counter=False
    )
    model = UtteranceLM(base_model=tiny_model)
    fit(tmp_path, model, data_module(corpus), [keeper, Preemption(), privacy(tmp_path)], enable_checkpointing=True)
    assert torch.load(last, weights_only=True)["global_step"] == done_steps(tmp_path) == NUM_STEPS
    before = last.read_bytes(), (tmp_path / "ledger.jsonl").read_bytes()
    model = UtteranceLM(base_model=tiny_model)
    again = [ModelCheckpoint(last.parent, "{step}", every_n_train_steps=3, save_last="link"), Preemption()]
    fit(tmp_path, model, data_module(corpus), [*again, privacy(tmp_path)], ckpt_path="last", enable_checkpointing=True)
    assert (last.read_bytes(), (tmp_path / "ledger.jsonl").read_bytes()) == before, "nothing new to keep"


class SignalEarly(Callback):
    """Sends SIGTERM ahead of the first step, from one of Lightning's hooks."""

    def __init__(self, hook: str) -> None:
        setattr(self, hook, lambda *_: os.kill(os.getpid(), signal.SIGTERM))


@pytest.mark.parametrize("hook", ["on_fit_start", "on_train_start"])
def test_a_signal_ahead_of_the_first_step_spends_nothing(
    tmp_path: Path, tiny_model: str, corpus: str, undisturbed: torch.Tensor, hook: str
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Preempted) as left:
        train(tmp_path, tiny_model, data_module(corpus), SignalEarly(hook))
    assert left.value.code == EXIT_STATUS
    signal.signal(signal.SIGTERM, before)
    assert not (tmp_path / "checkpoints" / "last.ckpt").exists()
    assert done_steps(tmp_path) == 0
    assert torch.equal(weights(train(tmp_path, tiny_model, data_module(corpus))), undisturbed)


def test_a_run_without_privacy_resumes_with_the_same_dropout(tmp_path: Path, tiny_model: str, corpus: str) -> None:
    def run(name: str, *extra: Callback, resume: bool = False) -> torch.Tensor:
        data = data_module(corpus, sampling="shuffle", sampling_seed=None)
        return weights(train(tmp_path / name, tiny_model, data, *extra, resume=resume, is_private=False))

    whole = run("whole")
    with pytest.raises(Preempted):
        run("broken", SignalAt(6))
    assert torch.equal(run("broken", resume=True), whole)


def test_dropout_of_a_private_run_is_secret(
    tmp_path: Path, tiny_model: str, corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GaussianNoise, "add_", lambda *args, **kwargs: None)

    def run(name: str, seed: int | None) -> torch.Tensor:
        seed_everything(7)
        model = UtteranceLM(base_model=tiny_model, dropout=0.3)
        fit(tmp_path / name, model, data_module(corpus), [privacy(tmp_path / name, seed=seed)], max_epochs=1)
        return weights(model)

    known = run("a", seed=5)
    assert torch.equal(run("b", seed=5), known), "without noise, only the masks are left to chance"
    assert not torch.equal(run("c", seed=None), known), "the public seed does not reach them"


def test_after_a_failure_a_signal_does_what_it_did_before(tmp_path: Path, tiny_model: str, corpus: str) -> None:
    class Fail(Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            raise ArithmeticError

    caught: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: caught.append(number))
    try:
        with pytest.raises(ArithmeticError):
            train(tmp_path, tiny_model, data_module(corpus), Fail(), is_private=False)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert caught == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


class SignalAtBatch(Callback):
    """Sends SIGTERM while the third batch is sampled."""

    def on_predict_batch_start(self, *args: Any) -> None:
        if args[3] == 2:
            os.kill(os.getpid(), signal.SIGTERM)


def test_sampling_stops_after_its_batch_and_goes_on(tmp_path: Path) -> None:
    whole, output = tmp_path / "whole.jsonl", tmp_path / "trees.jsonl"
    sample(whole)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Preempted) as left:
        sample(output, SignalAtBatch(), Preemption(), enable_checkpointing=True)
    signal.signal(signal.SIGTERM, before)
    assert left.value.code == EXIT_STATUS
    assert not output.exists()
    model = sample(output, Preemption(), enable_checkpointing=True)
    assert model.asked == list(range(12, NUM_SAMPLES))
    assert read(output) == read(whole)


@pytest.mark.ddp
@pytest.mark.slow
def test_one_signalled_rank_stops_all(tmp_path: Path, tiny_model: str, corpus: str) -> None:
    def run(name: str, *extra: Callback, resume: bool = False) -> torch.Tensor:
        strategy = LogicalBatchDDPStrategy(start_method="spawn", process_group_backend="gloo")
        folder = tmp_path / name
        return weights(
            train(folder, tiny_model, data_module(corpus), *extra, resume=resume, devices=2, strategy=strategy)
        )

    whole = run("whole")
    with pytest.raises(torch.multiprocessing.ProcessExitedException) as left:
        run("broken", SignalAt(3, rank=1))
    assert left.value.exit_code == EXIT_STATUS
    assert done_steps(tmp_path / "broken") == 4
    assert torch.equal(run("broken", resume=True), whole)
    assert done_steps(tmp_path / "broken") == NUM_STEPS


def test_a_batch_job_is_requeued_and_ends_with_its_own_status(
    cluster: Path, tiny_model: str, corpus: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["cli.py"])
    run = cluster / "run" / "one_stage"
    command = [
        "fit",
        "--config",
        f"{ROOT}/configs/utterance_lm.yaml",
        "--data=datamodules.dialogue_data_module.DialogueDataModule",
    ]
    command += ["--privacy.target_epsilon=8", "--privacy.accountant=rdp", f"--model.init_args.base_model={tiny_model}"]
    command += [f"--data.init_args.train_path={corpus}", "--data.init_args.unit=utterance"]
    command += ["--data.init_args.val_path=null", f"--run_dir={run}"]
    command += ["--data.init_args.batch_size=12", "--trainer.accelerator=cpu", "--trainer.max_epochs=1"]
    command += ["--trainer.logger=false", "--trainer.enable_progress_bar=false"]
    with pytest.raises(SystemExit) as left:
        cli.main([*command, "--trainer.callbacks+=signals.SignalAt", "--trainer.callbacks.init_args.step=2"])
    assert left.value.code == EXIT_STATUS
    assert (cluster / "calls").read_text().splitlines()[-1] == "scontrol requeue 4711_3"
    assert json.loads((run / "owner.json").read_text()) == {"job": "4711", "task": "3"}
    assert done_steps(cluster / "run") == 3

    calls = (cluster / "calls").read_text()
    assert cli.main([*command, "--ckpt_path=last"]) == 0, "the same job comes back to its folder"
    assert done_steps(cluster / "run") == 5
    assert (cluster / "calls").read_text() == calls

    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "4")
    assert cli.main([*command, "--ckpt_path=last"]) == 2
    assert "belongs to array task 4711_3" in capsys.readouterr().err
    assert done_steps(cluster / "run") == 5


def test_only_a_running_job_is_requeued(cluster: Path) -> None:
    job = SlurmJob.current()
    assert job == SlurmJob("4711", "3")
    assert job.requeue() is None
    (cluster / "STATE").write_text("COMPLETING\n")
    assert "COMPLETING" in (job.requeue() or "")
    assert (cluster / "calls").read_text().count("scontrol") == 1
    (cluster / "tools" / "squeue").unlink()
    (cluster / "tools" / "scontrol").unlink()
    assert "scontrol" in (job.requeue() or ""), "a node without SLURM's commands is no crash"


def test_an_interactive_session_and_a_plain_machine_have_no_job() -> None:
    assert SlurmJob.current({}) is None
    assert SlurmJob.current({"SLURM_JOB_ID": "1", "SLURM_JOB_NAME": "interactive"}) is None
    assert str(SlurmJob.current({"SLURM_JOB_ID": "1"})) == "1"


@pytest.mark.parametrize(
    ("owner", "claimant", "is_refused"),
    [
        (SlurmJob("7", "1"), SlurmJob("7", "1"), False),
        (SlurmJob("7", "1"), SlurmJob("7", "2"), True),
        (SlurmJob("7", "1"), SlurmJob("9", "2"), False),
        (SlurmJob("7", "1"), SlurmJob("8"), False),
        (SlurmJob("7"), SlurmJob("7"), False),
    ],
)
def test_a_run_folder_is_never_shared_by_tasks_of_an_array(
    tmp_path: Path, owner: SlurmJob, claimant: SlurmJob, is_refused: bool
) -> None:
    claim(tmp_path, owner)
    if is_refused:
        with pytest.raises(UserError, match="7_1.*7_2"):
            claim(tmp_path, claimant)
    else:
        claim(tmp_path, claimant)
    (path,) = tmp_path.iterdir()
    assert SlurmJob(**json.loads(path.read_text())) == (owner if is_refused else claimant)


def test_nothing_to_save_with_is_refused_before_training(tmp_path: Path, tiny_model: str, corpus: str) -> None:
    with pytest.raises(UserError, match="save_last"):
        fit(
            tmp_path,
            UtteranceLM(base_model=tiny_model),
            data_module(corpus),
            [Preemption(), ModelCheckpoint(tmp_path)],
            enable_checkpointing=True,
        )
