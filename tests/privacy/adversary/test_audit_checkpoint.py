"""The attacker puts other weights into an audit, so that it bounds the ε of a training that was never claimed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import cli

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_an_audit_does_not_take_a_wrong_checkpoint_for_its_own(
    tmp_path: Path,
    tiny_model: str,
    corpus: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["cli.py"])
    words = [
        "audit",
        f"--config={ROOT / 'configs' / 'utterance_lm.yaml'}",
        "--data=datamodules.dialogue_data_module.DialogueDataModule",
        f"--model.init_args.base_model={tiny_model}",
        f"--data.init_args.train_path={corpus}",
        "--data.init_args.unit=utterance",
        "--data.init_args.batch_size=20",
        "--privacy.target_epsilon=1",
        "--privacy.accountant=rdp",
        "--trainer.max_epochs=1",
        "--trainer.accelerator=cpu",
        "--trainer.logger=false",
        "--num_canaries=4",
        "--num_samples=0",
        f"--run_dir={tmp_path / 'audit'}",
    ]
    assert cli.main(words) == 0
    last = (tmp_path / "audit" / "checkpoints" / "last.ckpt").resolve()
    whole: dict[str, Any] = torch.load(last, weights_only=True)
    state = whole["callbacks"]["DifferentialPrivacy"]
    wrong = {
        "training without privacy": {k: v for k, v in whole["callbacks"].items() if k != "DifferentialPrivacy"},
        "its steps were charged as": {**whole["callbacks"], "DifferentialPrivacy": {**state, "mechanism_id": "a/fit"}},
        "has no release of it": {**whole["callbacks"], "DifferentialPrivacy": {**state, "num_steps": 99}},
    }
    for said, callbacks in wrong.items():
        torch.save({**whole, "callbacks": callbacks}, last)
        capsys.readouterr()
        assert cli.main(words) == 2
        assert said in capsys.readouterr().err
