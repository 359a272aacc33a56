"""The step timer accounts for the time of a step, and keeps private timings under their label."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger

from callbacks.differential_privacy import DifferentialPrivacy
from callbacks.step_timer import StepTimer
from datamodules.dialogue_data_module import DialogueDataModule
from doppel.phases import PHASES
from doppel.privacy.spec import PrivacyArguments
from lightning_modules.utterance_lm import UtteranceLM


@pytest.mark.parametrize("private", [True, False])
def test_phases_account_for_the_step(tmp_path: Path, tiny_model: str, corpus: str, private: bool) -> None:
    logger = CSVLogger(tmp_path)
    timer = StepTimer(num_warmup_steps=1)
    callbacks: list[Any] = [timer]
    if private:
        callbacks.append(
            DifferentialPrivacy(PrivacyArguments(target_epsilon=8.0, ledger_path=str(tmp_path / "ledger.jsonl")))
        )
    data = DialogueDataModule(corpus, unit="utterance", batch_size=20, sampling="poisson" if private else "shuffle")
    trainer = Trainer(
        default_root_dir=tmp_path,
        max_epochs=2,
        accelerator="cpu",
        logger=logger,
        callbacks=callbacks,
        log_every_n_steps=2,
        enable_progress_bar=False,
        enable_checkpointing=False,
        use_distributed_sampler=False,
    )
    trainer.fit(UtteranceLM(base_model=tiny_model), data)
    summary = json.loads((tmp_path / "step_times.json").read_text())
    seconds = summary["median_seconds"]
    assert summary["is_private"] == private
    assert summary["num_steps"] == trainer.global_step - 1
    assert all(sum(step.get(name, 0.0) for name in PHASES) <= step["total"] + 1e-6 for step in timer._steps)
    positive = {"data", "forward", "backward", "optimizer"} | ({"clip", "noise"} if private else set())
    assert {name for name in PHASES if seconds[name] > 1e-6} >= positive
    if not private:
        assert seconds["clip"] == seconds["noise"] == 0.0
    with open(Path(logger.log_dir) / "metrics.csv", encoding="utf-8") as file:
        header = next(csv.reader(file))
    timings = [name for name in header if "time" in name]
    assert len(timings) == len(PHASES) + 1
    assert all(name.startswith("private/") == private for name in timings)
