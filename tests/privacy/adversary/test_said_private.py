"""Somebody loses privacy by mistake: an overlay, an order of files. Nothing may be trained on private data then."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import yaml
from private_training import data_module, fit, privacy

import cli
from callbacks.differential_privacy import DifferentialPrivacy
from commands.run.experiment.experiment import load, shipped
from commands.run.steps.recipes import steps_of
from doppel.errors import UserError
from doppel.privacy.accounting import compute_epsilon
from doppel.privacy.ledger import Ledger
from doppel.privacy.spec import PrivacyArguments
from lightning_modules.causal_lm import UtteranceLM

pytestmark = pytest.mark.filterwarnings("ignore")
ROOT = Path(__file__).resolve().parents[3]


def command(folder: Path, tiny_model: str, corpus: str, *more: object) -> list[str]:
    """A fit whose first file has a ``privacy``; ``more`` are later files, as mappings, and words."""
    first = {
        "privacy": {"target_epsilon": 3.0, "accountant": "rdp"},
        "model": {"class_path": "lightning_modules.causal_lm.UtteranceLM", "init_args": {"base_model": tiny_model}},
        "data": {
            "class_path": "datamodules.dialogue_data_module.DialogueDataModule",
            "init_args": {"train_path": corpus, "unit": "utterance", "batch_size": 30},
        },
        "trainer": {"accelerator": "cpu", "max_epochs": 1, "logger": False},
    }
    words = ["fit"]
    for number, given in enumerate([first, *more]):
        if isinstance(given, dict):
            path = folder / f"{number}.yaml"
            path.write_text(yaml.safe_dump(given))
            words += ["--config", str(path)]
        else:
            words.append(str(given))
    return [*words, f"--run_dir={folder}/run/stage"]


@pytest.fixture(autouse=True)
def _own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["cli.py"])


def test_an_overlay_that_takes_privacy_away_trains_nothing(
    tmp_path: Path, tiny_model: str, corpus: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(command(tmp_path, tiny_model, corpus, {"privacy": None})) == 2
    assert "no privacy" in (error := capsys.readouterr().err) and "--not_private" in error
    assert not list(tmp_path.rglob("*.ckpt"))


def test_privacy_that_was_lost_does_not_come_back_with_another_epsilon(
    tmp_path: Path, tiny_model: str, corpus: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(command(tmp_path, tiny_model, corpus, {"privacy": None}, "--privacy.scope=z")) == 2
    assert "target_epsilon" in capsys.readouterr().err
    assert not list(tmp_path.rglob("ledger.jsonl")) and not list(tmp_path.rglob("*.ckpt"))


def test_a_training_cannot_be_private_and_not(
    tmp_path: Path, tiny_model: str, corpus: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(command(tmp_path, tiny_model, corpus, {"not_private": True})) == 2
    assert "not_private" in capsys.readouterr().err


@pytest.mark.parametrize("asked", ["--not_private=true", "--data.init_args.is_public=true"])
def test_what_is_asked_for_by_name_is_trained_and_said(
    tmp_path: Path, tiny_model: str, corpus: str, said: list[str], asked: str
) -> None:
    assert cli.main(command(tmp_path, tiny_model, corpus, {"privacy": None}, asked)) == 0
    lines = [text for text in said if "PRIVATE" in text]
    assert len(lines) == 2 and all(line.startswith("NOT PRIVATE") for line in lines)
    assert ("declared public" in lines[0]) == ("is_public" in asked)


def test_a_private_training_says_its_guarantee_at_start_and_end(
    tmp_path: Path, tiny_model: str, corpus: str, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ledger, "voids", lambda ledger, scope: [])  # of the test's seeds
    fit(tmp_path, UtteranceLM(base_model=tiny_model), data_module(corpus), [privacy(tmp_path)], max_epochs=1)
    first, last = [text for text in said if text.startswith("PRIVATE, budget 'default': ")]
    spent = f"; spent so far ε = {Ledger(tmp_path / 'ledger.jsonl').epsilon('default'):.3f}"
    assert "target ε = 8" in first and last == f"{first}{spent}"
    terms = [text for text in said if text.startswith("  for one utterance more or less; N = 60, σ = ")]
    assert len(terms) == 2 and all(" 5 steps of " in line for line in terms), terms
    assert all(len(line) <= 77 for line in (first, last, *terms)), "80 columns, with what a run puts before them"


def test_a_training_says_what_it_comes_to_with_other_runs_on_the_same_data(
    tmp_path: Path, tiny_model: str, corpus: str, said: list[str]
) -> None:
    for name in ("first", "second"):
        data = data_module(corpus, sampling_seed=None)
        trainer = fit(
            tmp_path / name,
            UtteranceLM(base_model=tiny_model),
            data,
            [privacy(tmp_path / name, seed=None)],
            max_epochs=1,
        )
    spec = next(c.spec for c in trainer.callbacks if isinstance(c, DifferentialPrivacy))  # type: ignore[attr-defined]
    assert spec is not None
    both = compute_epsilon([*spec.mechanisms()] * 2, spec.budget.delta, "rdp")
    told = " ".join(text.strip() for text in said)
    lead = f"with 1 other run on these data: ε = {both:.4g} at δ = 1e-05, all planned steps counted; spent so far ε = "
    first = Ledger(tmp_path / "first" / "ledger.jsonl").epsilon("default")
    assert told.count("other run") == 2 and f"{lead}{first:.4g}" in told, "before the second training"
    assert f"{lead}{both:.4g}" in told and all(len(text) <= 77 for text in said if "ε" in text)


def test_epsilon_has_no_default() -> None:
    with pytest.raises(UserError, match="target_epsilon"):
        PrivacyArguments(scope="z")


@pytest.mark.parametrize(
    "overlay", [{"privacy": {"target_epsilon": 50.0}}, {"privacy": {"epochs": [1]}}, {"privacy": None}]
)
def test_an_overlay_of_an_experiment_changes_neither_epsilon_nor_epochs(tmp_path: Path, overlay: dict) -> None:
    path = tmp_path / "overlay.yaml"
    path.write_text(yaml.safe_dump(overlay))
    experiment = load(shipped("quickstart"), {"overlays": [str(path)]})
    with pytest.raises(UserError, match="overlay.yaml"):
        steps_of(experiment, tmp_path / "run")


@pytest.mark.parametrize(("epsilon", "expected"), [(8.0, None), (math.inf, True)])
def test_an_experiment_says_by_name_that_it_is_not_private(
    tmp_path: Path, epsilon: float, expected: bool | None
) -> None:
    experiment = load(shipped("quickstart"), {"epsilon": epsilon})
    fits = [stage for stage in steps_of(experiment, tmp_path / "run") if stage.kind == "fit"]
    assert fits and all((stage.config or {}).get("not_private") == expected for stage in fits)
