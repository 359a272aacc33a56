"""The χ² distance of random halves of SMCalFlow has the published size."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from datamodules.reading.examples import read_examples
from doppel.metrics.type_counts import chi_square_distance, count_function_types


def test_chi_square_of_random_halves_is_that_of_the_paper(data_folder: Path) -> None:
    """Halves of 14,751 turns are 0.0030 apart; chance distance shrinks as 1/n, so scale to the turns here."""
    trees = [
        turn.parse
        for part in ("train", "valid")
        for turn in read_examples(
            str(data_folder / "smcalflow" / f"{part}.dataflow_dialogues.jsonl.zip"), unit="utterance"
        )
    ]
    distances = []
    for seed in range(4):
        random.Random(seed).shuffle(trees)
        halves = trees[: len(trees) // 2], trees[len(trees) // 2 :]
        distances.append(chi_square_distance(*map(count_function_types, halves)))
    scaled = sum(distances) / len(distances) * len(trees) / 14_751
    assert scaled == pytest.approx(0.0030, abs=0.0004)
