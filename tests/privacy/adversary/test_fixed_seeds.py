"""The attacker reads a fixed seed in the configuration: noise can be subtracted, and it is known who was drawn. So
nothing states an ε where there is one."""

from __future__ import annotations

import csv
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from private_training import data_module, fit, privacy

from commands.lightning.next_steps import close
from doppel.console.ledger import ledger as ledger_command
from doppel.privacy.ledger import Ledger
from lightning_modules.causal_lm import UtteranceLM

pytestmark = pytest.mark.filterwarnings("ignore")

SEEDS = {
    "privacy.seed": ({"seed": 5}, {"sampling_seed": None}),
    "data.sampling_seed": ({"seed": None}, {"sampling_seed": 3}),
}


def train(folder: Path, model: str, corpus: str, noise: dict[str, Any], sampling: dict[str, Any]) -> Any:
    logger, keeper = CSVLogger(folder), ModelCheckpoint(dirpath=folder / "checkpoints", save_last=True)
    callbacks, given = [privacy(folder, **noise), keeper], {"logger": logger, "enable_checkpointing": True}
    return fit(folder, UtteranceLM(base_model=model), data_module(corpus, **sampling), callbacks, 1, **given)


@pytest.mark.parametrize("name", SEEDS)
def test_a_fixed_seed_voids_the_claim_wherever_epsilon_is_told(
    name: str,
    tmp_path: Path,
    tiny_model: str,
    corpus: str,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    trainer = train(tmp_path, tiny_model, corpus, *SEEDS[name])
    summary = Ledger(tmp_path / "ledger.jsonl").summary()
    assert summary["epsilon"] is None and summary["scopes"]["default"]["epsilon"] is None
    assert all(mechanism["epsilon"] is None for mechanism in summary["mechanisms"])
    assert f"NOT PRIVATE, default: {name} of fit was fixed" in summary["statement"]
    capsys.readouterr()
    ledger_command(tmp_path)
    told = capsys.readouterr().out
    assert f"NOT PRIVATE, default: {name}" in told and "epsilon = " not in told
    assert not re.search(rf"{summary['scopes']['default']['epsilon_of_mechanisms']:.3f}", told)
    with open(Path(trainer.logger.log_dir) / "metrics.csv", newline="") as file:
        assert {row["dp/epsilon"] for row in csv.DictReader(file) if row["dp/epsilon"]} == {"inf"}
    with caplog.at_level(logging.INFO):
        close(trainer)
    assert f"NOT PRIVATE, budget 'default': {name}" in caplog.text and "spent ε" not in caplog.text


def test_seeds_of_the_operating_system_leave_no_caveat(tmp_path: Path, tiny_model: str, corpus: str) -> None:
    train(tmp_path, tiny_model, corpus, {"seed": None}, {"sampling_seed": None})
    scope = Ledger(tmp_path / "ledger.jsonl").summary()["scopes"]["default"]
    assert scope["voids"] == scope["caveats"] == [] and 0 < scope["epsilon"] <= 8.0


def test_a_void_scope_does_not_hide_in_what_all_scopes_spend(tmp_path: Path, tiny_model: str, corpus: str) -> None:
    train(tmp_path, tiny_model, corpus, {"seed": None}, {"sampling_seed": None})
    train(tmp_path, tiny_model, corpus, {"seed": 5, "scope": "fixed"}, {"sampling_seed": None})
    ledger = Ledger(tmp_path / "ledger.jsonl")
    summary = ledger.summary()
    assert summary["epsilon"] is None
    assert summary["statement"].startswith(
        "Everything recorded here (default) but fixed, which is NOT PRIVATE, released"
    )
    ledger.caveat("default", "an exact count was released", voids=True)
    assert ledger.summary()["statement"].startswith("No epsilon holds for anything that is recorded here.")
