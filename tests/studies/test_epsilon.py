"""The tasks `epsilon`, `orders` and `closeness`: what they print, and that no ε is there without the word estimate."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from commands.quality.frame import read_csv
from studies.redaction.__main__ import TASKS, main
from studies.redaction.hull import BANNER


@pytest.fixture
def sets(tmp_path: Path) -> list[str]:
    a, b = np.random.default_rng(0).standard_normal((2, 300, 3))
    for name, rows in (("a", a), ("b", b + 1)):
        np.save(tmp_path / f"{name}.npy", rows)
    return [str(tmp_path / f"{name}.npy") for name in "ab"]


def test_an_estimate_is_called_one_and_falls_with_delta(sets: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for delta in ("1e-3", "1e-9"):
        assert main(["epsilon", *sets, "--delta", delta, "--references", "2"]) == 0
        values = json.loads(capsys.readouterr().out)
        assert values["note"] == BANNER and [name for name in values if "epsilon" in name] == ["epsilon_estimate"]
        assert min(map(float, values["orders"])) == 1 and max(map(float, values["orders"])) == 20
        found.append(values["epsilon_estimate"])
    assert 0 < found[0] < found[1]


@pytest.mark.parametrize(("more", "message"), [(["--delta", "2"], "--delta"), (["--k", "3"], "--k")])
def test_what_cannot_be_is_one_line(
    more: list[str], message: str, sets: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["epsilon", *sets, *more]) == 2
    assert message in capsys.readouterr().err


def test_where_the_truth_is_known_the_estimate_flattens(tmp_path: Path) -> None:
    assert main(["orders", "--num", "400", "--seeds", "1", "--out", str(tmp_path / "orders.csv")]) == 0
    found = read_csv(tmp_path / "orders.csv").set_index(["setting", "metric"])["value"]
    assert found["truth", "divergence@64"] == 32 > 2 * found["as the neighbours say", "divergence@64"]
    assert found["truth", "epsilon_estimate"] > found["as the neighbours say", "epsilon_estimate"]


def test_weights_of_other_models_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "a.npz", encoder=np.eye(3))
    np.savez(tmp_path / "b.npz", decoder=np.eye(3))
    np.save(tmp_path / "c.npy", np.eye(3))
    for other, message in (("b.npz", "has other matrices"), ("c.npy", "no matrices"), ("d.npz", "no matrices")):
        assert main(["closeness", str(tmp_path / "a.npz"), str(tmp_path / other)]) == 2
        assert message in capsys.readouterr().err


def test_the_tasks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    told = capsys.readouterr().out
    assert all(f"  {name} " in told for group in TASKS.values() for name in group)
