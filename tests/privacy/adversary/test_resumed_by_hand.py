"""The same command again: an interrupted training must not begin anew, and pay again, in silence."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint
from private_training import STEP_6, data_module, fit, privacy
from signals import SignalAt

import cli
from callbacks.preemption import Preempted, Preemption
from commands.lightning.stage_folder import last_checkpoint
from doppel.privacy.ledger import Ledger
from lightning_modules.causal_lm import UtteranceLM

pytestmark = pytest.mark.filterwarnings("ignore")
ROOT = Path(__file__).resolve().parents[3]


def command(stage: Path, model: str, corpus: str) -> list[str]:
    return [
        *("fit", f"--config={ROOT}/configs/utterance_lm.yaml", f"--model.init_args.base_model={model}"),
        *("--data=datamodules.dialogue_data_module.DialogueDataModule", f"--data.init_args.train_path={corpus}"),
        *("--data.init_args.unit=utterance", "--data.init_args.batch_size=12", "--trainer.logger=false"),
        *("--trainer.accelerator=cpu", "--trainer.max_epochs=1", f"--run_dir={stage}"),
    ]


@pytest.mark.slow
def test_a_folder_with_a_checkpoint_asks_for_it_or_for_another(
    tmp_path: Path, tiny_model: str, corpus: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["cli.py"])
    stage = tmp_path / "run" / "one_stage"
    private = ["--privacy.target_epsilon=8", "--privacy.accountant=rdp"]
    begin = command(stage, tiny_model, corpus)
    assert cli.main([*begin, *private]) == 0
    before = (tmp_path / "run" / "ledger.jsonl").read_bytes()
    for terms in (private, ["--not_private=true"]):
        capsys.readouterr()
        assert cli.main([*begin, *terms]) == 2
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert error.startswith(f"error: {stage}/checkpoints/last.ckpt: ")
        assert "--ckpt_path last" in error and "--run_dir" in error
    assert (tmp_path / "run" / "ledger.jsonl").read_bytes() == before
    assert cli.main([*begin, *private, "--ckpt_path=last"]) == 0
    assert Ledger(tmp_path / "run" / "ledger.jsonl").summary()["mechanisms"][0]["done_steps"] == 5


def test_the_end_of_an_interrupted_training_says_how_to_go_on(
    tmp_path: Path, tiny_model: str, corpus: str, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in [name for name in os.environ if name.startswith("SLURM") or name == "DOPPEL_RUN"]:
        monkeypatch.delenv(variable)
    keeper = ModelCheckpoint(tmp_path / "checkpoints", "{step}", every_n_epochs=1, save_last="link")
    callbacks = [keeper, Preemption(), privacy(tmp_path, seed=None), SignalAt(2, "SIGINT")]
    data = data_module(corpus, sampling_seed=None)
    with pytest.raises(Preempted):
        fit(tmp_path, UtteranceLM(base_model=tiny_model), data, callbacks, enable_checkpointing=True)
    assert any("--ckpt_path last" in text for text in said)
    assert last_checkpoint(tmp_path) is not None


def test_a_training_that_begins_anew_for_one_ledger_says_that_it_pays_on_top(
    own_private_run: Path, tiny_model: str, corpus: str, caplog: pytest.LogCaptureFixture
) -> None:
    (own_private_run / STEP_6).unlink()
    ledger = Ledger(own_private_run / "ledger.jsonl")
    model, data = UtteranceLM(base_model=tiny_model), data_module(corpus, sampling_seed=None)
    spent = ledger.summary()["mechanisms"][0]["done_steps"]
    with pytest.raises(Exception, match="no step left"):
        fit(own_private_run, model, data, [privacy(own_private_run, seed=None)], max_epochs=2)
    assert f"has {spent} steps of default/fit" in caplog.text
