"""The table of optimisers: what each cell trains with, that cells are trained once, and the losers' arithmetic."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from studies.tables import optimizers
from studies.tables.optimizers import Cell, CorrectedAdam, PlainAdam


def stepped(optimizer: torch.optim.Optimizer, weight: torch.nn.Parameter, gradients: Sequence[float]) -> list[float]:
    """The weight after each step."""
    found = []
    for gradient in gradients:
        weight.grad = torch.tensor([gradient])
        optimizer.step()
        found.append(weight.item())
    return found


def test_plain_adam_stays_adamw_when_it_is_bound() -> None:
    own, other = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))
    plain = PlainAdam([own], lr=0.1)
    plain.bind(3.0, 3)
    reference = torch.optim.AdamW([other], lr=0.1, weight_decay=0.0)
    assert stepped(plain, own, (1.0, -0.5, 2.0)) == stepped(reference, other, (1.0, -0.5, 2.0))


def test_a_warm_up_raises_the_rate_linearly() -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    moved = np.diff([0.0, *stepped(PlainAdam([weight], lr=0.1, warmup=4), weight, [1.0] * 6)])
    np.testing.assert_allclose(moved, [-0.025, -0.05, -0.075, -0.1, -0.1, -0.1], rtol=1e-5)


def test_corrected_adam_takes_the_noise_from_the_second_moment() -> None:
    """At a constant gradient g the corrected moments are g and g² - (ratio · std)², of which the floor is the least."""
    weight, floored = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    corrected = CorrectedAdam([weight], lr=0.1, noise_ratio=2.0, floor=0.5)
    corrected.bind(2.0, 1)
    assert stepped(corrected, weight, [5.0])[0] == pytest.approx(-0.1 * 5 / 3, rel=1e-5)
    corrected = CorrectedAdam([floored], lr=0.1, noise_ratio=2.0, floor=0.5)
    corrected.bind(2.0, 1)
    assert stepped(corrected, floored, [1.0])[0] == pytest.approx(-0.1 * 1 / 2, rel=1e-5)


@pytest.mark.slow
def test_own_noise_follows_from_the_matrix() -> None:
    """The root mean square of the rows of C⁻¹, of independent noise 1, per row up to the last."""
    assert optimizers.own_noise(Cell("AdamW-BC", 1e-3)) == 1.0
    assert optimizers.own_noise(Cell("AdamW-BC", 1e-3, 8)) > 2.0
    assert 0.7 < optimizers.weights_noise(Cell("DPAdam", 1e-3, 8)) < 0.85


def test_cells_are_trained_once_and_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    resumed: list[bool] = []

    def fit(command: Sequence[str], **_: Any) -> SimpleNamespace:
        started.append(Path(command[command.index("--config") + 1]).parent.name)
        resumed.append("--ckpt_path" in command)
        last = Path(command[command.index("--run_dir") + 1]) / "checkpoints/last.ckpt"
        last.parent.mkdir(parents=True, exist_ok=True)
        last.touch()
        return SimpleNamespace(returncode=len(started) == 2)

    turns = [SimpleNamespace(utterance=f"row {i}") for i in range(3_043)]
    monkeypatch.setattr(optimizers.subprocess, "run", fit)
    monkeypatch.setattr(optimizers, "read_examples", lambda *_, **__: turns)
    monkeypatch.setattr(optimizers, "losses", lambda *_: {"cross_entropy_per_word": 4.5})
    monkeypatch.setattr(optimizers, "weights_noise", lambda _: 0.8)
    monkeypatch.setattr(optimizers, "version", lambda: "abc")
    names = ["n3043-DPAdam-0.002-b4-s1", "n3043-AdamW-0.001-b1-s1"]
    words = [str(tmp_path), "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "table.csv"), "--cells", *names]
    with pytest.raises(SystemExit, match="log"):
        optimizers.main(words)
    optimizers.main(words)
    assert started == [names[0], names[1], names[1]] and resumed == [False, False, True]
    table = pd.read_csv(tmp_path / "table.csv")
    told = table[table.metric == "cross_entropy_per_word"]
    assert set(told.setting) == {"DPAdam, rate 2e-3, 4 bands", "AdamW, rate 1e-3, 1 band"}
    assert json.loads((tmp_path / "runs" / names[0] / "cell.json").read_text())["cell"]["units"] == 3_043


def test_samples_of_what_has_three_seeds_are_compared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []

    def step(command: Sequence[str], **_: Any) -> SimpleNamespace:
        started.append(command[2])
        if command[2] == "evaluate":
            told = {"mauve_minilm": 0.81234, "word_overlap": 0.4, "distinct": 0.9, "mean_words": 7.0, "other": None}
            Path(command[command.index("--out") + 1]).write_text(json.dumps(told))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(optimizers.subprocess, "run", step)
    cell = Cell("DPAdam", 2e-3, 8, seed=2)
    assert cell.is_sampled and not Cell("DPAdam", 4.8e-3, 8).is_sampled
    (tmp_path / "cell.json").write_text(json.dumps({"cell": {}, "metrics": {"minutes": 3}}))
    for _ in range(2):
        optimizers.sample(cell, tmp_path / "valid.zip", 9, tmp_path)
    assert started == ["predict", "evaluate"]
    assert json.loads((tmp_path / "cell.json").read_text())["metrics"]["mauve_minilm"] == 0.8123


def test_every_cell_has_a_name_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    optimizers.main(["unused", "--runs", "unused", "--out", "unused", "--list"])
    names = capsys.readouterr().out.split()
    assert len(names) == len(set(names)) == len(optimizers.cells())
