"""Precision: texts that are among human ones in meaning, few of them too, and how that is of people themselves."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from doppel.metrics.precision import precision_metrics

PEOPLE = [f"{word} {number}" for word in ("call", "pay") for number in range(40)]


def features(texts: Sequence[str]) -> Tensor:
    """People's lie about two directions, and what nobody says about a third."""
    rows = torch.zeros(len(texts), 3)
    for row, text in zip(rows, texts, strict=True):
        word, _, number = text.partition(" ")
        row[["call", "pay"].index(word) if word in ("call", "pay") else 2] = 1.0
        row[0] += int(number or 0) / 1000
    return rows


def test_people_are_among_people_and_what_nobody_says_is_not() -> None:
    own = [text for text in PEOPLE if text.endswith("5")]
    half = precision_metrics([*own, *(f"colourless {number}" for number in range(len(own)))], PEOPLE, features, "x", 3)
    assert half["precision_x"] == 0.5 and (half["human_precision_x"] or 0) > 0.7
    assert precision_metrics(["colourless"], PEOPLE, features, "x", 3)["precision_x"] == 0
    assert precision_metrics(["pay 3", "  "], PEOPLE, features, "x", 3)["precision_x"] == 0.5, "no words say nothing"


def test_a_request_that_people_say_word_for_word_is_theirs() -> None:
    """Also where so many say it that a human request reaches no farther than itself."""
    values = precision_metrics(["call 7"], ["call 7"] * 12, features, "x", 0)
    assert values == {"precision_x": 1.0, "human_precision_x": 1.0}


@pytest.mark.parametrize(("samples", "people"), [(["pay 3"], PEOPLE[:7]), ([], PEOPLE), (["pay 3"], [""] * 99)])
def test_of_too_few_there_is_none(samples: list[str], people: list[str]) -> None:
    assert set(precision_metrics(samples, people, features, "x", 0).values()) == {None}
