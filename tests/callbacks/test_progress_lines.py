"""What a training and a sampling show of themselves: ours alone, with ε and the time left, and no blank line."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch import seed_everything
from lightning.pytorch.callbacks import ProgressBar
from private_training import data_module, fit, privacy

from callbacks import progress_lines
from callbacks.differential_privacy import DifferentialPrivacy
from callbacks.progress_lines import ProgressInPlace, ProgressLines
from commands.lightning.quiet import _is_ours, _one_line
from doppel.privacy.spec import PrivacyArguments
from lightning_modules.causal_lm import UtteranceLM


def trainer_at(step: int, spent: float | None) -> Any:
    privacy = DifferentialPrivacy(PrivacyArguments(target_epsilon=8.0))
    privacy.spent = spent
    return SimpleNamespace(
        global_step=step,
        estimated_stepping_batches=60,
        log_every_n_steps=10,
        callbacks=[privacy],
        default_root_dir="runs/mine/one_stage",
    )


def shown(bar: ProgressLines, monkeypatch: pytest.MonkeyPatch, steps: list[int], seconds: float = 2.0) -> None:
    """A training whose steps take two seconds each, or as long as is said."""
    clock = iter([100.0, *(100.0 + seconds * step for step in steps)])
    monkeypatch.setattr(progress_lines, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr(ProgressBar, "get_metrics", lambda *_: {"v_num": "c1dc", "private/loss": 0.5})
    bar.on_train_start(trainer_at(0, None), None)  # type: ignore[arg-type]
    for step in steps:
        bar.on_train_batch_end(trainer_at(step, 1.84), None)  # type: ignore[arg-type]


def test_a_log_has_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        shown(ProgressLines(), monkeypatch, [10])
    assert [message.strip() for message in caplog.messages] == ["one_stage 10/60 steps · ε 1.84 of 8 · 1:40 left"]


def test_slow_steps_have_a_line_a_minute(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        shown(ProgressLines(), monkeypatch, [1, 2, 3, 4, 5], seconds=25.0)
    assert [message.split()[1] for message in caplog.messages] == ["3/60"]
    caplog.clear()
    with caplog.at_level(logging.INFO):
        shown(ProgressLines(), monkeypatch, [1, 2, 3], seconds=150.0)
    assert [message.split()[1] for message in caplog.messages] == ["1/60", "2/60", "3/60"]


def test_a_terminal_has_a_bar_with_epsilon_and_without_private_figures(
    tmp_path: Path, tiny_model: str, corpus: str, capsys: pytest.CaptureFixture[str]
) -> None:
    callbacks = [privacy(tmp_path, seed=None, log_private_diagnostics=True), ProgressInPlace()]
    fit(
        tmp_path,
        UtteranceLM(base_model=tiny_model),
        data_module(corpus, sampling_seed=None),
        callbacks,
        1,
        enable_progress_bar=True,
    )
    shown = capsys.readouterr().out
    assert "5/5" in shown and re.search(r"ε=\d\.\d\d of 8", shown)
    assert "private" not in shown and "loss" not in shown and "v_num" not in shown


def test_only_this_project_informs_and_every_warning_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        seed_everything(1)  # "Seed set to 1"
        progress_lines.rank_zero_info("of ours")
    assert [record.getMessage() for record in caplog.records if _is_ours(record)][-1:] == ["of ours"]
    assert not any(_is_ours(record) for record in caplog.records if "Seed" in record.getMessage())
    assert _one_line("the disk\n is full", UserWarning, "any.py", 1) == "warning: the disk is full\n"
