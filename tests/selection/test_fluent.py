"""Fluent samples: their place among people's, and that what there is of a kind stays."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from doppel.selection.fluent import FLUENT, bands_of, places_among, prefer_fluent

PEOPLE = ["book a table", "play some jazz for me", "what is on my calendar today", "call ana"] * 25


def nats(texts: list[str]) -> list[float]:
    """Three nats a word, and more for words that nobody says."""
    return [3.0 * len(text.split()) + 9.0 * text.count("zz") + 0.01 * (len(text) % 7) for text in texts]


def test_a_place_is_the_share_of_people_of_that_length_who_are_expected_better() -> None:
    """The long text is no less fluent for its length, the garbled one is less fluent than everybody."""
    short, long, garbled, empty = places_among(["call ana", PEOPLE[2], "call zz zz", " "], PEOPLE, nats)
    assert garbled == empty == 1.0
    assert short < 1.0 and long < 1.0
    own = places_among(PEOPLE, PEOPLE, nats)
    assert 0.2 < np.mean(own) < 0.5  # ties: nobody is ahead of an equal


def test_bands_are_fifths_of_people() -> None:
    lengths = [" ".join(["w"] * number) for number in range(1, 101)]
    counts = Counter(bands_of(lengths, lengths))
    assert set(counts) == set(range(5)) and set(counts.values()) == {20}


@pytest.mark.parametrize("seed", range(5))
def test_kinds_stay_as_they_were_drawn_and_fluent_ones_are_drawn_uniformly(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kinds = list(zip(rng.integers(0, 6, 400).tolist(), rng.integers(0, 5, 400).tolist(), strict=True))
    places = rng.random(400).tolist()
    drawn = rng.choice(400, 100, replace=False).tolist()
    found = prefer_fluent(drawn, kinds, places, seed)
    assert Counter(kinds[number] for number in found) == Counter(kinds[number] for number in drawn)
    assert found == sorted(set(found)) and len(found) == 100
    for kind in set(kinds):
        own = [number for number, other in enumerate(kinds) if other == kind]
        kept = [places[number] for number in own if number in found]
        left = [places[number] for number in own if number not in found]
        if kept and left and max(kept) > FLUENT:  # one that lacks something only where no fluent one is left
            assert min(left) >= max(kept)
    assert found == prefer_fluent(drawn, kinds, places, seed)


def test_among_fluent_ones_no_place_is_preferred() -> None:
    kinds, places = ["a"] * 40, [number / 80 for number in range(40)]
    counts = Counter(number for seed in range(400) for number in prefer_fluent(list(range(10)), kinds, places, seed))
    assert set(counts) == set(range(40)) and max(counts.values()) < 2 * min(counts.values())


def test_a_kind_that_is_drawn_more_often_than_it_is_there_repeats() -> None:
    assert prefer_fluent([0, 0, 0, 1], ["a", "b"], [0.1, 0.9]) == [0, 0, 0, 1]
