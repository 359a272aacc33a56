"""An honest mistake: a list of callbacks, which replaces what keeps the weights that a training pays for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml
from lightning.pytorch.callbacks import Callback

import cli
from commands.lightning.cli import DoppelCLI
from commands.run.experiment.experiment import load, shipped
from commands.run.steps.recipes import steps_of
from doppel.errors import UserError
from doppel.privacy.ledger import Ledger

CHECKPOINT = "lightning.pytorch.callbacks.ModelCheckpoint"
NEEDED = ["ModelCheckpoint", "WandbLineage", "Preemption"]
UNKEPT = {
    "trainer.enable_checkpointing": False,
    "trainer.callbacks": [{"class_path": CHECKPOINT, "init_args": {"dirpath": "elsewhere"}}],
    "trainer.callbacks+": {"class_path": "ModelCheckpoint", "init_args": {"save_weights_only": True}},
}


class Counting(Callback):
    """A callback of the user's."""


def fit_words(folder: Path, tiny_model: str, corpus: str, *more: str) -> list[str]:
    words = ["fit", "--config=configs/utterance_lm.yaml", f"--model.base_model={tiny_model}"]
    words += ["--data=datamodules.dialogue_data_module.DialogueDataModule", f"--data.train_path={corpus}"]
    words += ["--data.unit=utterance", "--data.batch_size=30", "--trainer.accelerator=cpu", "--trainer.logger=false"]
    words += ["--privacy.target_epsilon=8", "--privacy.accountant=rdp", "--trainer.max_epochs=1", f"--run_dir={folder}"]
    return [*words, *more]


def test_a_list_of_callbacks_is_appended_to_what_keeps_the_weights(
    tmp_path: Path, tiny_model: str, corpus: str
) -> None:
    stage = tmp_path / "run" / "one_stage"
    own = f"--trainer.callbacks=[{{class_path: {__name__}.Counting}}]"
    assert cli.main(fit_words(stage, tiny_model, corpus, own)) == 0
    assert Ledger(tmp_path / "run" / "ledger.jsonl").summary()["mechanisms"][0]["done_steps"] == 2
    assert (stage / "checkpoints" / "last.ckpt").exists()
    saved = yaml.safe_load((stage / "config.yaml").read_text())["trainer"]["callbacks"]
    assert [callback["class_path"].rpartition(".")[2] for callback in saved] == [*NEEDED, "Counting"]
    assert names(["fit", f"--config={stage}/config.yaml", f"--run_dir={tmp_path}/again"]) == [*NEEDED, "Counting"]


@pytest.mark.parametrize(
    ("given", "are"),
    [
        ("null", NEEDED),
        (f"[{{class_path: {CHECKPOINT}, init_args: {{every_n_epochs: 5}}}}]", [*NEEDED[1:], "ModelCheckpoint"]),
        (f"[{{class_path: {CHECKPOINT}, init_args: {{monitor: step, filename: best}}}}]", [*NEEDED, "ModelCheckpoint"]),
    ],
    ids=["null", "its rhythm", "a further one"],
)
def test_whatever_is_listed_one_callback_writes_the_last_checkpoint(
    given: str, are: list[str], tmp_path: Path, tiny_model: str, corpus: str
) -> None:
    assert names(fit_words(tmp_path / "run" / "fit", tiny_model, corpus, f"--trainer.callbacks={given}")) == are


def names(words: list[str]) -> list[str]:
    """Callbacks that a command would train with; one of them saves last.ckpt at the one place."""
    seen: list[Any] = []

    def stop(self: DoppelCLI) -> None:
        seen.extend(self.config.fit.trainer.callbacks)
        raise UserError("enough is seen")

    with mock.patch.object(DoppelCLI, "instantiate_classes", stop):
        assert cli.main(words) == 2
    (kept,) = [one.init_args for one in seen if one.class_path == CHECKPOINT and one.init_args.save_last]
    assert kept.dirpath.endswith("/checkpoints") and not kept.enable_version_counter and kept.monitor is None
    return [callback.class_path.rpartition(".")[2] for callback in seen]


@pytest.mark.parametrize("key", UNKEPT)
def test_what_takes_the_weights_away_is_refused_by_name_before_anything_is_paid(
    key: str, tmp_path: Path, tiny_model: str, corpus: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also of the second stage alone, before the first one is charged."""
    stage = tmp_path / "run" / "one_stage"
    assert cli.main(fit_words(stage, tiny_model, corpus, f"--{key}={json.dumps(UNKEPT[key])}")) == 2
    told = capsys.readouterr().err
    assert key.rstrip("+") in told and "leave" in told and not (tmp_path / "run" / "ledger.jsonl").exists()
    for place in (key, f"stages.parse2utterance.{key}"):
        with pytest.raises(UserError, match=key.rstrip("+")):
            steps_of(load(shipped("quickstart"), {place: UNKEPT[key]}), tmp_path)
