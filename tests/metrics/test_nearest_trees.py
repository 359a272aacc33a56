"""The stand-in parser borrows the tree of the most similar annotated utterance."""

from __future__ import annotations

import pytest

from doppel.metrics import NearestTrees

UTTERANCES = [
    "what is the weather in Paris",
    "book lunch with Ann",
    "cancel my meeting",
    "cancel my meeting",
    ".",
]
TREES = ["(Weather)", "(Create)", "(Odd)", "(Delete)", "(Dot)"]


def test_an_annotated_utterance_keeps_its_tree_and_a_variant_gets_it() -> None:
    nearest = NearestTrees([*UTTERANCES, "cancel my meeting"], [*TREES, "(Delete)"])
    asked = ["what's the weather in Rome?", "book dinner with Anne", "cancel my meeting", "cancel my meeting"]
    assert nearest.annotate(asked, batch_size=2) == ["(Weather)", "(Create)", "(Delete)", "(Delete)"]


def test_an_utterance_without_any_known_feature_gets_the_first_tree() -> None:
    assert NearestTrees(UTTERANCES, TREES).annotate(["ξξξ", ""]) == ["(Weather)", "(Weather)"]


@pytest.mark.parametrize(("utterances", "trees"), [([], []), (["a"], [])])
def test_it_needs_annotated_utterances(utterances: list[str], trees: list[str]) -> None:
    with pytest.raises(ValueError, match="one tree for each"):
        NearestTrees(utterances, trees)
