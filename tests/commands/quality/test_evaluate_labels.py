"""``label-accuracy``: samples that carry their labels teach them, others do not, and private figures say so."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cli
from commands.privacy import feature_extractors

FOOD = ["we had a lovely pizza", "the soup was cold", "tasty noodles here", "great pizza and soup"]
CARS = ["they fixed my car", "the engine was broken", "oil change and tyres", "my car needed tyres"]
STARS = {"5": "I love it", "1": "I hate it"}
ROWS = [(f"{text} {said}", kind, stars) for kind, texts in (("Food", FOOD), ("Cars", CARS)) for text in texts
        for stars, said in STARS.items()]  # fmt: skip


def write(path: Path, rows: list[tuple[str, str, str]]) -> str:
    """Write samples as the model of utterances given a code does."""
    lines = ({"utterance": text, "label": f"Kind: {kind} | Stars: {stars}"} for text, kind, stars in rows)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


@pytest.fixture
def table(tmp_path: Path) -> str:
    """Real texts in a table of its own columns."""
    path = tmp_path / "real.csv"
    path.write_text("review,kind,stars\n" + "".join(f"{text},{kind},{stars}\n" for text, kind, stars in ROWS))
    return str(path)


def values_of(out: Path, *words: str) -> dict[str, Any]:
    """Run the command and read what it wrote."""
    assert cli.main(["label-accuracy", *words, "--out", str(out)]) == 0
    values: dict[str, Any] = json.loads(out.read_text())
    return values


def words_of(texts: Sequence[str], encoder: str, independent: bool = False) -> np.ndarray:
    """In place of a sentence encoder, which not every machine has: which words a text holds."""
    known = sorted({word for text, _, _ in ROWS for word in text.split()})
    return np.array([[float(word in text.split()) for word in known] for text in texts])


def test_samples_that_carry_their_labels_teach_them(
    tmp_path: Path, table: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(feature_extractors, "embed", words_of)
    good = write(tmp_path / "good.jsonl", ROWS)
    swapped = write(tmp_path / "swapped.jsonl", [(text, {"Food": "Cars"}.get(k, "Food"), s) for text, k, s in ROWS])
    constant = write(tmp_path / "constant.jsonl", [(text, "Food", stars) for text, _, stars in ROWS * 2])
    columns = ["--columns.text", "review", "--columns.label", "[kind, stars]"]
    words = ["--synthetic", good, swapped, constant, "--reference", table, *columns]
    private = tmp_path / "private.csv"
    private.write_text("review,kind,stars\n" + "".join(f"well {text},{kind},{stars}\n" for text, kind, stars in ROWS))
    values = values_of(tmp_path / "out" / "values.json", *words, "--private", str(private))
    assert values["majority"] == {"Kind": 0.5, "Stars": 0.5}
    assert (values["num_train"], values["num_test"]) == (len(ROWS), len(ROWS))  # equally many: the fewest
    scores = values["accuracy"]
    assert list(scores) == [good, swapped, constant]  # figures of private text stand elsewhere
    assert scores[good] == values["private/accuracy"] == {"Kind": [1.0] * 3, "Stars": [1.0] * 3}
    assert scores[swapped]["Kind"] == [0.0] * 3 and scores[swapped]["Stars"] == [1.0] * 3
    assert scores[constant]["Kind"] == [0.5] * 3
    told = capsys.readouterr().out
    assert "private/accuracy (NOT PRIVATE)" in told and "majority class" in told
    again = values_of(tmp_path / "again.json", *words, "--num-samples", "9", "--seeds", "4")
    assert again["num_train"] == 9 and again["seeds"] == [4] and "private/accuracy" not in again
    assert "NOT PRIVATE" not in capsys.readouterr().out
    cars = [row for row in ROWS if row[1] == "Cars"]
    skewed = write(tmp_path / "skewed.jsonl", ROWS[: len(FOOD) * 2] + cars[:2])
    words = ["--synthetic", constant, "--reference", skewed, "--seeds", "1"]
    plain, balanced = values_of(tmp_path / "p.json", *words), values_of(tmp_path / "b.json", *words, "--balanced")
    assert plain["majority"]["Kind"] == 0.8 and plain["accuracy"][constant]["Kind"] == [0.8]
    assert balanced["majority"]["Kind"] == 0.5 and balanced["accuracy"][constant]["Kind"] == [0.5]


@pytest.mark.parametrize(
    ("samples", "words", "told"),
    [
        ([{"utterance": "hello secretword", "label": "Kind: Food"}], [], "does not have the labels of --reference"),
        ([{"utterance": "hello secretword"}], [], "samples.jsonl:1"),
        ([{"utterance": "hello", "label": "Kind: a | Stars: b"}], ["--num-samples", "0"], "--num-samples"),
        ([{"utterance": "hello", "label": "Kind: a | Stars: b"}], ["--no-mauve"], "no-mauve"),
    ],
)
def test_what_cannot_be_used_is_named_and_never_quoted(
    samples: list[dict[str, str]], words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in samples))
    test = write(tmp_path / "test.jsonl", ROWS)
    assert cli.main(["label-accuracy", "--synthetic", str(path), "--reference", test, *words]) == 2
    error = capsys.readouterr().err
    assert told in error and "secretword" not in error
