"""The attack falls with the level of redaction and reaches chance; replayed strings are counted in whole words."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from doppel.errors import DataError, UserError
from doppel.redaction.attack import classify, replayed
from doppel.redaction.mask import Redactor
from doppel.redaction.rank import LogisticRanker
from doppel.redaction.reconstruction import Reconstructor

BASE = Path(__file__).parents[2] / "models" / "base"


def texts(kind: str, num: int, seed: int) -> list[str]:
    """Two kinds that differ in two of their words, one of them the more telling."""
    draw = random.Random(seed)
    own, hint = ("doctor", "back") if kind == "sensitive" else ("table", "window")
    rows = []
    for _ in range(num):
        words = [
            "please",
            "book",
            "a",
            own if draw.random() < 0.9 else "slot",
            "for",
            draw.choice(["one", "two", "three"]),
        ]
        rows.append(" ".join([*words, hint] if draw.random() < 0.4 else words))
    return rows


def test_the_attack_falls_with_the_level_and_is_at_chance_when_all_is_masked() -> None:
    ranker = LogisticRanker.fit(texts("sensitive", 100, 1), texts("safe", 100, 2))
    sensitive, safe = texts("sensitive", 150, 3), texts("safe", 120, 4)
    found = []
    for level in (0.0, 0.15, 0.6, 1.0):
        redactor = Redactor(ranker=ranker, level=level)
        hidden = [[redactor.redact(text).text for text in rows] for rows in (sensitive, safe)]
        found.append(classify(*hidden))
    assert [one.num_texts for one in found] == [240] * 4
    accuracies = [one.accuracy for one in found]
    assert accuracies[0] > 0.9 > accuracies[1] + 0.1 and accuracies[1] >= accuracies[2] - 0.05
    assert accuracies[3] == 0.5  # exactly
    assert found[3].standard_error == pytest.approx(0.5 / 240**0.5)


def test_texts_of_one_kind_are_told_apart_as_by_chance() -> None:
    found = classify(texts("safe", 200, 5), texts("safe", 200, 6))
    assert abs(found.accuracy - 0.5) < 4 * found.standard_error


def test_too_few_texts_are_refused() -> None:
    with pytest.raises(DataError, match="at least 5 texts"):
        classify(["a"] * 4, ["b"] * 9)


def test_replayed_strings_count_in_whole_words_once_a_sample() -> None:
    samples = ["Ana  Lim and ana lim", "call ana lim.", "Ana Limbo", "C++ is C++", "nothing"]
    assert replayed(samples, ["Ana Lim", "c++", "Zoe"]) == [
        {"string": "Ana Lim", "verbatim": 1, "in_any_case": 2},
        {"string": "c++", "verbatim": 0, "in_any_case": 1},
        {"string": "Zoe", "verbatim": 0, "in_any_case": 0},
    ]
    samples = ["O’Neil", "O'Neil's", "给小明打电话", "ANN\u2011MARIE", "Ann Maries"]
    found = replayed(samples, ["O'Neil", "小明", "Ann-Marie"])
    assert [(row["verbatim"], row["in_any_case"]) for row in found] == [(1, 2), (1, 1), (0, 1)]
    for strings in ([], [" "]):
        with pytest.raises(DataError, match="one a line"):
            replayed(samples, strings)


class Last:
    """The last word tells most."""

    def scores(self, words: Sequence[str]) -> np.ndarray:
        return np.arange(len(words), dtype=float)


def test_a_language_model_guesses_usual_words_and_not_rare_ones() -> None:
    model = Reconstructor(BASE)
    redactor = Redactor(ranker=Last(), level=0.1)
    usual = ["Thank you very much!", "What time is it?", "How are you"]
    found = model.measure([redactor.redact(text) for text in usual])
    rare = model.measure([redactor.redact(f"my code is xq{n}zk") for n in range(3)])
    assert found.num_masks == 3 and found.top_1 >= 2 / 3 and found.top_1 <= found.top_10
    assert (rare.num_masks, rare.top_10) == (3, 0.0)
    guesses = model.guesses(["What"], ["is", "it", "now?"])
    assert "time" in model.guesses(["At", "what"], ["do", "you", "open?"]) and len(set(guesses)) == len(guesses) <= 10
    assert model.measure([redactor.redact("")]).as_dict() == {"num_masks": 0, "top_1": 0.0, "top_10": 0.0}


def test_no_model_no_guess(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="no masks can be guessed: cannot load the tokenizer of .*: there is no such folder"
    ):
        Reconstructor(tmp_path / "none")
