"""The attacker reads the run's page: no number of private text may stand there, whatever the verb."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger
from private_training import data_module, privacy

import cli
from lightning_modules.causal_lm import UtteranceLM
from lightning_modules.training.step_policy import PlainStep

pytestmark = pytest.mark.filterwarnings("ignore")
ROOT = Path(__file__).resolve().parents[3]


def names(folder: Path) -> set[str]:
    """Names of everything that was logged below a folder."""
    found = set()
    for path in folder.rglob("metrics.csv"):
        with path.open() as file:
            found |= {name for row in csv.DictReader(file) for name, value in row.items() if value}
    return found - {"step", "epoch"}


def evaluate(folder: Path, tiny_model: str, corpus: str, verb: str, data: dict[str, Any], **kwargs: Any) -> set[str]:
    model = UtteranceLM(base_model=tiny_model)
    trainer = Trainer(
        accelerator="cpu",
        callbacks=[privacy(folder, **kwargs)],
        logger=CSVLogger(folder),
        default_root_dir=folder,
        enable_progress_bar=False,
        limit_val_batches=1,
        limit_test_batches=1,
    )
    files = {f"{name}_path": corpus for name in ("val", "test")}
    getattr(trainer, verb)(model, data_module(corpus, **files | data), verbose=False)
    assert type(model.step_policy) is PlainStep, "the next trainer finds the module as it was"
    return names(folder) | set(trainer.callback_metrics)


@pytest.mark.parametrize("verb", ["validate", "test"])
def test_a_verb_on_private_files_tells_nothing(tmp_path: Path, tiny_model: str, corpus: str, verb: str) -> None:
    assert evaluate(tmp_path, tiny_model, corpus, verb, {}) == set()


def test_a_verb_on_private_files_tells_what_is_asked_for_under_a_name_that_says_so(
    tmp_path: Path, tiny_model: str, corpus: str
) -> None:
    told = evaluate(tmp_path, tiny_model, corpus, "test", {}, log_private_diagnostics=True)
    assert told == {"private/test_loss"}


def test_a_verb_on_public_files_tells_all(tmp_path: Path, tiny_model: str, corpus: str) -> None:
    public = tmp_path / "public.txt"
    public.write_text("move my dentist to Monday\nwho is coming to the party\n")
    told = evaluate(tmp_path, tiny_model, corpus, "test", {"test_is_public": True, "test_path": str(public)})
    assert told == {"test/loss"}


@pytest.mark.parametrize("privacy", [["--privacy.target_epsilon=8"], []])
def test_validate_is_closed_on_the_command_line_with_privacy_and_without(
    tmp_path: Path, tiny_model: str, corpus: str, monkeypatch: pytest.MonkeyPatch, privacy: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["cli.py"])
    arguments = [f"--config={ROOT}/configs/utterance_lm.yaml", f"--model.init_args.base_model={tiny_model}"]
    arguments += ["--data=datamodules.dialogue_data_module.DialogueDataModule", f"--run_dir={tmp_path}/run/one_stage"]
    arguments += ["--data.init_args.unit=utterance", f"--data.init_args.train_path={corpus}"]
    arguments += [f"--data.init_args.val_path={corpus}"]
    arguments += [*privacy, "--trainer.accelerator=cpu"]
    assert cli.main(["validate", *arguments, "--trainer.logger=lightning.pytorch.loggers.CSVLogger"]) == 0
    assert (tmp_path / "run" / "one_stage" / "validate.yaml").is_file() and names(tmp_path) == set()
