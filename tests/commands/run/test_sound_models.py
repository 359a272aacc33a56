"""Models that a run loads are whole before anything is charged: its base, and what judges, embeds, writes or parses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from commands.run import launch
from commands.run.experiment.experiment import shipped
from doppel.errors import UserError
from doppel.metrics.fluency import LanguageModel
from doppel.models.load import check_loads, load_with_tokenizer

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
USUAL = {"data.train_path": "embedded:train?num=200&seed=1", "reference": "embedded:test?num=60&seed=2"}
USUAL |= {"data.val_path": None, "data.val_is_public": False, "num_samples": 100, "systems": ["one_stage"]}


def half_copied(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    kept = {name: value for name, value in weights.items() if ".h.1." not in name}
    assert 0 < len(kept) < len(weights)
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


def torn(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


def own_code(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "c.C"}}
    (folder / "config.json").write_text(json.dumps(config))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "half copied": (half_copied, "lacks .* weights, such as"),
    "pointer": (lambda folder: (folder / "model.safetensors").write_text(POINTER), "model.safetensors is a pointer"),
    "tokenizer is a pointer": (lambda folder: (folder / "tokenizer.json").write_text(POINTER), "run `git lfs pull`"),
    "torn": (torn, "damaged"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "without config.json|give a folder that holds"),
    "own code": (own_code, "code of its own"),
}


@pytest.fixture
def folder(tiny_model: str, tmp_path: Path) -> Path:
    place: Path = shutil.copytree(tiny_model, tmp_path / "model")
    return place


@pytest.mark.parametrize("kind", ["causal_lm", "encoder"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_judge_and_an_encoder_pass_the_checks_of_a_base(damage: str, kind: Any, folder: Path) -> None:
    """With their weights and without: a judge of which half is missing would judge by new random numbers each time."""
    check_loads(folder, kind)
    change, said = DAMAGES[damage]
    change(folder)
    for load in (load_with_tokenizer, check_loads):
        with pytest.raises(UserError, match=said) as caught:
            load(folder, kind)
        assert "\n" not in str(caught.value) and str(folder) in str(caught.value)
    if kind == "causal_lm":
        with pytest.raises(UserError, match=said):
            LanguageModel(folder).nats(["set an alarm"])


PLACES: dict[str, Callable[[str], dict[str, Any]]] = {
    "model.base_model of ": lambda name: {"model.base_model": name},
    "featurizer of ": lambda name: {"featurizer": name},
    "encoder of ": lambda name: {"resampling": {"of": "votes", "encoder": name, "clusters": 2}},
    "evolution.generator of ": lambda name: {"systems": ["evolution"], "evolution": {"generator": name}},
}


@pytest.mark.parametrize(
    ("place", "damage"),
    [*((place, "half copied") for place in PLACES), ("featurizer of ", "pointer")],
)
def test_a_damaged_model_of_any_step_is_refused_before_the_first_one(
    place: str, damage: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "can_fork", lambda _: False)
    monkeypatch.setattr(launch, "run_here", lambda *_, **__: pytest.fail("a step was started"))
    change, said = DAMAGES[damage]
    change(folder)
    given = USUAL | PLACES[place](str(folder))
    if "evolution" in given:
        given["evolution"]["encoder"] = "models/base"
    words = [f"{name}={json.dumps(value)}" for name, value in given.items()]
    with pytest.raises(UserError, match=said) as refusal:
        launch.run(shipped("quickstart"), tmp_path / "run", set=words, local=True)
    assert place in str(refusal.value) and not (tmp_path / "run").exists()


def test_a_parser_that_is_no_checkpoint_is_refused_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "can_fork", lambda _: False)
    monkeypatch.setattr(launch, "run_here", lambda *_, **__: pytest.fail("a step was started"))
    (parser := tmp_path / "last.ckpt").write_text(POINTER)
    given = USUAL | {"systems": ["two_stage"], "public_parser": str(parser), "candidates": 2}
    words = [f"{name}={json.dumps(value)}" for name, value in given.items()]
    with pytest.raises(UserError, match="public_parser of .*last.ckpt cannot be read as a checkpoint"):
        launch.run(shipped("quickstart"), tmp_path / "run", set=words, local=True)
    assert not (tmp_path / "run").exists()
