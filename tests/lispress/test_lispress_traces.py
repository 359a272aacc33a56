"""What people say is never taken for code, and code that lost its end or its beginning is."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import pytest

from datamodules.reading.examples import read_examples
from doppel.lispress import holds_tree


def said(folder: Path, name: str) -> list[str]:
    if name == "public":
        with gzip.open(folder / name / "utterances.txt.gz", "rt", encoding="utf-8") as file:
            return file.read().splitlines()[::4]
    if name == "yelp":
        with open(folder / name / "dev.csv", encoding="utf-8", newline="") as file:
            return [row["text"] for row in csv.DictReader(file)]
    paths = [folder / name / f"{part}.dataflow_dialogues.jsonl.zip" for part in ("train", "valid")]
    return [turn.utterance for path in paths for turn in read_examples(str(path), unit="utterance")]


@pytest.mark.parametrize(("name", "most"), [("smcalflow", 0), ("public", 3), ("yelp", 1)])
def test_of_real_utterances_hardly_one_counts_as_code(name: str, most: int, data_folder: Path) -> None:
    """Of 11,771, of a quarter of 396,605 (where 6 are, stage directions of films mostly), and of 5,000."""
    assert sum(map(holds_tree, said(data_folder, name))) <= most


@pytest.mark.parametrize(
    "text",
    [
        "RepeatAgentStillHere)",
        "RepeatAgentStillHere",
        "see Brian's Lessonom)",
        'add "lunch") at noon',
        "lunch (with Ana)) at noon)",
        "is Event.subject_? there",
    ],
)
def test_a_piece_of_code_is_no_utterance(text: str) -> None:
    assert holds_tree(text)


@pytest.mark.parametrize(
    "text",
    [
        "thanks :) bye",
        "(it's great :) really) yes",
        "so sorry :((",
        "a) lunch b) dinner",
        "option 1) or 12)",
        "on Tuesday, April (",
        "YouTube (the site) and TheBigCoco play",
        "dinner (with Ana (my sister)) at 5",
    ],
)
def test_brackets_of_people_are_no_code(text: str) -> None:
    assert not holds_tree(text)
