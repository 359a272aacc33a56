"""Weights of turns in training: after the clipping in a private run, on the losses in an ordinary one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from private_training import data_module, fit, privacy, weights

from doppel.privacy.noise import GaussianNoise
from lightning_modules.utterance_lm import UtteranceLM

pytestmark = pytest.mark.filterwarnings("ignore")


def moved(folder: Path, base_model: str, lines: list[dict[str, object]], private: bool, unit: str) -> torch.Tensor:
    """Units times the step of plain gradient descent (rate 1) on all of them, with neither noise nor chance."""
    folder.mkdir()
    path = folder / "turns.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    model = UtteranceLM(base_model=base_model, optimizer=lambda p: torch.optim.SGD(p, lr=1.0))
    start = weights(model)
    units = len({line["unit"] for line in lines})
    data = data_module(str(path), unit=unit, batch_size=units, max_turns_per_unit=4, max_tokens_per_micro_batch=60)
    callbacks = [privacy(folder, max_grad_norm=0.05, delta=1e-3)] if private else []
    fit(folder, model, data, callbacks, max_epochs=1)
    return (weights(model) - start) * units


def lines_of(num: int, weight: float | None, name: str = "user") -> list[dict[str, object]]:
    lines: list[dict[str, object]] = [{"utterance": f"{name} calls {i}", "unit": f"{name}-{i}"} for i in range(num)]
    return lines if weight is None else [{**line, "weight": weight} for line in lines]


@pytest.mark.parametrize("private", [False, True])
def test_half_the_weight_is_half_the_contribution(
    private: bool, tiny_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GaussianNoise, "add_", lambda *args, **kwargs: None)
    first, second = lines_of(4, None, "ana"), lines_of(3, None, "ben")
    of_first = moved(tmp_path / "first", tiny_model, first, private, "utterance")
    of_second = moved(tmp_path / "second", tiny_model, second, private, "utterance")
    both = [{**line, "weight": 0.5} for line in first] + second
    of_both = moved(tmp_path / "both", tiny_model, both, private, "utterance")
    torch.testing.assert_close(of_both, 0.5 * of_first + of_second, rtol=1e-4, atol=1e-5)
    nothing = moved(tmp_path / "nothing", tiny_model, lines_of(4, 0.0), private, "utterance")
    assert not nothing.any()


def test_a_unit_is_clipped_and_then_weighed_by_the_mean_of_its_rows(
    tiny_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GaussianNoise, "add_", lambda *args, **kwargs: None)
    others = lines_of(4, None)
    heavy = [{"utterance": "the same words", "unit": "user-9", "weight": w} for w in (0.2, 0.4, 0.6)]
    before = moved(tmp_path / "without", tiny_model, others, True, "user")
    after = moved(tmp_path / "with", tiny_model, others + heavy, True, "user")
    assert (after - before).norm().item() == pytest.approx(0.4 * 0.05, rel=1e-3), "clipped to C, times 0.4"
