"""The attacker reads the W&B page of a private run: console and memory follow the texts that were drawn."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import wandb
from wandb_records import records

import cli

pytestmark = pytest.mark.filterwarnings("ignore")
ROOT = Path(__file__).resolve().parents[3]


def fit(folder: Path, tiny_model: str, corpus: str, *more: str) -> tuple[Any, set[str], bool]:
    """The settings of a training's W&B run, kinds of records that it wrote, and whether it kept the console."""
    arguments = [f"--config={ROOT}/configs/utterance_lm.yaml", f"--model.init_args.base_model={tiny_model}"]
    arguments += ["--data=datamodules.dialogue_data_module.DialogueDataModule", f"--run_dir={folder}/one_stage"]
    arguments += [f"--data.init_args.train_path={corpus}", "--data.init_args.unit=utterance"]
    arguments += ["--data.init_args.batch_size=30", "--trainer.max_epochs=1"]
    assert cli.main(["fit", *arguments, "--trainer.accelerator=cpu", *more]) == 0
    settings = wandb.run.settings if wandb.run else None
    wandb.finish()
    wandb.teardown()
    (file,) = folder.rglob("*.wandb")
    kinds = {record.WhichOneof("record_type") for record in records(file)}
    return settings, kinds, bool(list(folder.rglob("output.log")))


@pytest.fixture(autouse=True)
def _own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["cli.py"])
    monkeypatch.delenv("WANDB_CONSOLE", raising=False)


PRIVATE = ("--privacy.target_epsilon=8", "--privacy.accountant=rdp")


def test_a_private_run_keeps_neither_console_nor_memory(tmp_path: Path, tiny_model: str, corpus: str) -> None:
    settings, kinds, has_console = fit(tmp_path, tiny_model, corpus, *PRIVATE)
    assert (settings.console, settings.x_disable_stats) == ("off", True)
    assert not has_console and not kinds & {"stats", "output", "output_raw"} and "history" in kinds


def test_who_asks_for_the_console_gets_it(
    tmp_path: Path, tiny_model: str, corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_CONSOLE", "wrap")
    monkeypatch.setenv("WANDB_X_DISABLE_STATS", "false")
    settings, _, has_console = fit(tmp_path, tiny_model, corpus, *PRIVATE)
    assert (settings.console, settings.x_disable_stats, has_console) == ("wrap", False, True)
