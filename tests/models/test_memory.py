"""Memory is estimated before it is taken."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from private_training import data_module, fit, privacy
from torch import Tensor, nn

from benchmarks._memory_meter import live_bytes, peak_bytes
from doppel.models import memory
from lightning_modules.causal_lm import UtteranceLM

LENGTH, WIDTH = 16, 64


def stack() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[layer for _ in range(12) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())])


@pytest.mark.parametrize("max_tokens", [4096, 16384])
def test_the_estimate_is_near_what_a_step_takes(max_tokens: int) -> None:
    model = stack()
    optimizer = torch.optim.AdamW(model.parameters())

    def losses(num_rows: int) -> Tensor:
        return model(torch.zeros(num_rows, LENGTH, WIDTH)).square().sum((1, 2))

    def step() -> None:
        losses(max_tokens // LENGTH).sum().backward()
        optimizer.step()

    found = memory.bytes_of_a_step(model, losses, LENGTH, max_tokens, is_half=False)
    weights = live_bytes()
    step()
    taken = peak_bytes(step, "cpu") - weights
    assert 0.7 * taken < found < 1.4 * taken


def test_a_training_that_does_not_fit_names_what_to_lower(
    tiny_model: str, corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(name: str) -> None:
        model = UtteranceLM(base_model=tiny_model)
        fit(tmp_path / name, model, data_module(corpus), [privacy(tmp_path / name)], max_epochs=1)

    meminfo = tmp_path / "meminfo"
    monkeypatch.setattr(memory, "_MEMINFO", meminfo)
    meminfo.write_text("MemTotal:       99999999 kB\nMemAvailable:   64 kB\n")
    with pytest.warns(UserWarning, match=r"0\.0 GB are free: lower data\.max_tokens_per_micro_batch"):
        train("short")
    meminfo.write_text("MemTotal:       99999999 kB\nMemAvailable:   99999999 kB\n")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        train("enough")
    assert not any("GB are free" in str(warning.message) for warning in said)


def test_a_machine_that_does_not_say_is_asked_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "none")
    assert memory.free_bytes(torch.device("cpu")) is None
    assert memory.shortage(2**60, torch.device("cpu"), 4096) is None
