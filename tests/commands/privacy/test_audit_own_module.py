"""An audit of a module of one's own: its canaries are rows, and an engine without noise is caught by them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import cli
from doppel.privacy.noise import GaussianNoise

pytestmark = pytest.mark.filterwarnings("ignore")
MINE = """
import torch
from datamodules.unit_data_module import UnitDataModule
from lightning_modules.training.logical_batch_module import LogicalBatchModule

class Model(LogicalBatchModule):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(400, 2)

    def losses(self, batch):
        ids, labels = batch.rows
        return torch.nn.functional.cross_entropy(self.table(ids[:, None])[:, 0], labels, reduction="none")

    def canary(self, number):
        return 200 + number, number % 2

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=100.0)

class Silent(Model):
    canary = LogicalBatchModule.canary

class Data(UnitDataModule):
    def __init__(self, batch_size: int | None = 60):
        super().__init__([(i, i % 2) for i in range(200)], "row", batch_size=batch_size)
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["cli.py"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    Path("mine.py").write_text(MINE)


def audit(model: str, *more: str) -> int:
    fit = ["--model", f"mine.{model}", "--data", "mine.Data", "--trainer.max_epochs=5", "--trainer.logger=false"]
    private = ["--privacy.target_epsilon=1", "--privacy.accountant=rdp", "--privacy.max_grad_norm=1"]
    return cli.main(["audit", *fit, *private, "--run_dir=audit", "--num_canaries=150", *more])


def test_a_module_of_ones_own_is_audited_on_its_own_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit("Model") == 0
    report = json.loads(Path("audit/audit.json").read_text())
    assert report["num_units"] == 350 and report["private/bound"]["num_canaries"] == 150
    assert report["claim"]["sample_rate"] == pytest.approx(60 / 350), "N is the same whatever the coins say"
    assert report["verdict"] == "consistent with the claim" and report["private/extraction"] is None
    before = Path("audit/ledger.jsonl").read_bytes()
    assert audit("Model") == 0 and Path("audit/ledger.jsonl").read_bytes() == before
    capsys.readouterr()
    assert audit("Model", "--canaries=texts.jsonl", "--run_dir=other") == 2
    assert "leave it out" in capsys.readouterr().err


def test_a_module_of_ones_own_without_noise_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GaussianNoise, "add_", lambda *args, **kwargs: None)
    assert audit("Model") == 1
    report = json.loads(Path("audit/audit.json").read_text())
    assert report["private/bound"]["epsilon_lower_bound"] > 1 >= report["claim"]["epsilon"]


def test_a_module_without_canaries_is_told_what_it_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit("Silent") == 2
    assert "Silent on Data cannot be audited: give a CausalLM" in (told := capsys.readouterr().err)
    assert "defines canary(self, number)" in told and not Path("audit/ledger.jsonl").exists()
