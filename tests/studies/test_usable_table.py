"""The table of usable samples: the sheet hides its writers, readers are held against the key, figures are ranked."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from studies.tables import usable


def nats(texts: list[str]) -> list[float]:
    """Two nats a word, and as many more as the text has z."""
    return [2.0 * len(text.split()) + text.count("z") for text in texts]


def written(folder: Path) -> Path:
    texts = {name: [f"{name} says {n}" for n in range(9)] for name in ("people", "model")}
    usable.write_sheet(texts, 5, 1, folder)
    return folder / "key.csv"


def filled(folder: Path, name: str, answers: dict[str, str]) -> Path:
    """A sheet with one answer a writer."""
    sheet = pd.read_csv(folder / "sheet.csv")
    sheet["usable"] = [answers[text.split()[0]] for text in sheet["text"]]
    sheet.to_csv(folder / name, index=False)
    return folder / name


def test_a_sheet_has_as_many_texts_of_each_writer_and_no_name(tmp_path: Path) -> None:
    key = written(tmp_path)
    sheet = pd.read_csv(tmp_path / "sheet.csv")
    assert list(sheet.columns) == list(usable.COLUMNS)
    writers = pd.read_csv(key)["writer"]
    assert writers.value_counts().to_dict() == {"people": 5, "model": 5}
    assert [text.split()[0] for text in sheet["text"]] == list(writers)
    assert list(writers) != sorted(writers)


def test_readers_are_counted_by_writer_and_agree_by_kappa(tmp_path: Path) -> None:
    key = written(tmp_path)
    one = filled(tmp_path, "one.csv", {"people": "yes", "model": "No"})
    other = filled(tmp_path, "other.csv", {"people": "yes", "model": "yes"})
    told = {
        "people": dict.fromkeys(usable.FIGURES, 0.5) | {"num_compared": 5},
        "model": dict.fromkeys(usable.FIGURES, 0.1) | {"num_compared": 5, "auc_minilm": 0.9},
    }
    table = usable.score(usable.readings([one, other], key), told).set_index(["setting", "metric"])["value"]
    assert table["people", "usable"] == 1.0
    assert (table["model", "usable_reader_1"], table["model", "usable"]) == (0.0, 0.5)
    assert (table["all writers", "kappa"], table["all writers", "agreement"]) == (0.0, 0.5)
    assert table["all writers", "rank_correlation@mauve_minilm"] == 1.0
    assert table["all writers", "rank_correlation@auc_minilm"] == 1.0  # the larger, the better they are told apart


def test_more_than_people_have_is_no_nearer() -> None:
    values = np.array([0.9, 0.8, 0.5])
    np.testing.assert_allclose(usable.nearness(values, 0.8, 1), [0.0, 0.0, -0.3])
    np.testing.assert_allclose(usable.nearness(values, 0.5, -1), [-0.4, -0.3, 0.0])


def test_a_sheet_with_an_empty_cell_is_refused(tmp_path: Path) -> None:
    key = written(tmp_path)
    with pytest.raises(SystemExit, match=r"sheet\.csv: give each of the 10 texts of .* one yes or no"):
        usable.readings([tmp_path / "sheet.csv"], key)


def test_typical_texts_are_neither_too_odd_nor_empty() -> None:
    people = ["a b", "a b c"] * 20
    assert usable.typical(["a b", "a b c", "z z", ""], people, nats) == 0.5


def test_a_classifier_tells_apart_what_differs_alone() -> None:
    generator = torch.Generator().manual_seed(1)
    people_MD = torch.randn(60, 4, generator=generator)
    assert usable.auc(people_MD + 3, people_MD.flip(0), 1) > 0.99
    assert usable.auc(torch.randn(60, 4, generator=generator), people_MD, 1) == pytest.approx(0.5, abs=0.15)


def test_people_are_two_halves_and_samples_all(tmp_path: Path) -> None:
    for name, num in (("people", 8), ("model", 3)):
        lines = "".join(json.dumps({"utterance": f"{name} {n}" if n else ""}) + "\n" for n in range(num))
        (tmp_path / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    texts, people = usable.texts_of({name: str(tmp_path / f"{name}.jsonl") for name in ("people", "model")})
    assert len(texts["model"]) == 3, "an empty sample is a sample"
    assert not set(texts["people"]) & set(people)
    assert (len(texts["people"]), len(people)) == (3, 4)


def test_figures_ask_the_judge_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Model:
        def __init__(self, name: str, **_: object) -> None:
            self.name = str(name)

        def nats(self, texts: list[str]) -> list[float]:
            asked.append(self.name)
            return nats(texts)

        def __call__(self, texts: list[str]) -> torch.Tensor:
            return torch.tensor([[len(text), text.count("a")] for text in texts], dtype=torch.float32)

    monkeypatch.setattr(usable, "LanguageModel", Model)
    monkeypatch.setattr(usable, "TextFeaturizer", Model)
    monkeypatch.setattr(usable, "minilm", lambda: "minilm")
    monkeypatch.setattr(usable, "place_of", lambda name: name)
    monkeypatch.setattr(usable, "compare", lambda *_, nats, **__: nats([]) and {} or dict.fromkeys(usable.FIGURES, 0.3))
    people = [f"a {'b ' * (n % 4)}" for n in range(20)]
    told = usable.figures({"people": people, "model": people[:12]}, people, {"model": "other"}, 1)
    assert set(asked) == {usable.LARGER, "other"}
    assert told["model"]["num_compared"] == 12
    assert told["model"]["mauve_minilm"] == 0.3
