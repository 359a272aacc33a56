"""A plan of what an experiment says: its unit, batch and epochs, unless an option says otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import cli

OWN = "configs/experiments/own-data-small.yaml"


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert cli.main(["plan", *words, "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def test_a_plan_is_that_of_the_experiment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its batch is a fifth of the units, by its effort, and its noise is correlated, as in the run."""
    own = tmp_path / "own.yaml"
    own.write_text(
        "base: own-data-small\nepsilon: 16\ndata: {unit: user, columns: {unit: who}}\nprivacy: {delta: 1.0e-6}\n"
    )
    told = planned(capsys, str(own), "--num-units", "2000")
    assert (told["unit"], told["target_epsilon"], told["delta"], told["batch_size"]) == ("user", 16, 1e-6, 400)
    assert told["steps"] == 60 and told["bands"] > 1
    own.write_text("base: own-data-small\neffort: 1\ndata: {columns: {messages: messages}, batch_size: 50}\n")
    told = planned(capsys, str(own), "--num-units=2000", "--target-epsilon=1", "--bands", "1")
    assert (told["unit"], told["target_epsilon"], told["batch_size"]) == ("dialogue", 1, 50) and "bands" not in told
    assert planned(capsys, OWN, "--num-units", "2000", "--bands=1", "--unit", "user")["unit"] == "user", (
        "an option wins"
    )


def test_what_an_experiment_does_not_say_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", OWN]) == 2 and "give --num-units" in capsys.readouterr().err
    assert cli.main(["plan", "nowhere.yaml"]) == 2 and "there is no experiment nowhere.yaml" in capsys.readouterr().err
    own = tmp_path / "own.yaml"
    own.write_text("base: own-data-small\nsystems: [evolution]\n")
    assert cli.main(["plan", str(own)]) == 2 and "trains nothing" in capsys.readouterr().err
