"""Which turns are trained on, and with whose trees."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from datamodules.dialogue_data_module import DialogueDataModule
from datamodules.guards.selection import Selection
from datamodules.reading.example import Example
from datamodules.reading.examples import read_examples
from datamodules.reading.files import content_digest
from datamodules.training_rows import TrainingRows
from doppel.errors import DataError

PATH = "embedded:train?num=200&seed=1"


@pytest.fixture(scope="module")
def turns() -> list[Example]:
    return read_examples(PATH, "utterance")


def test_keeping_a_function_keeps_its_turns_alone_and_asks_each_by_itself(turns: list[Example]) -> None:
    kept = Selection(keep_function="WeatherQueryApi").apply(turns, PATH, "utterance")
    assert kept == [turn for turn in turns if "(WeatherQueryApi" in (turn.parse or "")] != []
    whole = Selection(keep_function="Weather*").apply(turns, PATH, "utterance")
    assert set(kept) < set(whole) or kept == whole
    assert Selection(keep_function="WeatherQueryApi").apply(turns[:50], PATH, "utterance") == [
        t for t in kept if t in turns[:50]
    ]


def test_a_share_is_stable_when_other_units_come_or_go(turns: list[Example]) -> None:
    selection = Selection(keep_share=0.3)
    kept = selection.apply(turns, PATH, "utterance")
    assert 30 < len(kept) < 90
    assert selection.apply(turns[1:], PATH, "utterance") == [turn for turn in kept if turn is not turns[0]]
    assert Selection(keep_share=1.0).apply(turns, PATH, "utterance") == turns


def test_shuffling_permutes_trees_and_leaves_utterances_and_units(turns: list[Example]) -> None:
    shuffled = Selection(shuffle_trees=1).apply(turns, PATH, "utterance")
    assert [(t.utterance, t.unit) for t in shuffled] == [(t.utterance, t.unit) for t in turns]
    assert Counter(t.parse for t in shuffled) == Counter(t.parse for t in turns)
    assert sum(a.parse != b.parse for a, b in zip(shuffled, turns, strict=True)) > 150
    assert (
        shuffled
        == Selection(shuffle_trees=1).apply(turns, PATH, "utterance")
        != Selection(shuffle_trees=2).apply(turns, PATH, "utterance")
    )


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (Selection(keep_function="NoSuchFunction"), "NoSuchFunction"),
        (Selection(keep_function="A*b"), "keep_function"),
        (Selection(keep_share=1e-12), "keep_share"),
    ],
)
def test_a_selection_that_leaves_nothing_is_told(turns: list[Example], selection: Selection, message: str) -> None:
    with pytest.raises(DataError, match=message):
        selection.apply(turns, PATH, "utterance")


def test_bad_shares_and_missing_trees_are_told(turns: list[Example]) -> None:
    with pytest.raises(DataError, match="keep_share"):
        Selection(keep_share=0)
    with pytest.raises(DataError, match="shuffle_trees"):
        Selection(shuffle_trees=1).apply([*turns, Example("hello", None, "u")], PATH, "utterance")


def test_rows_and_fingerprint_tell_selections_apart() -> None:
    selections = [
        Selection(),
        Selection(keep_function="WeatherQueryApi"),
        Selection(keep_share=0.5),
        Selection(shuffle_trees=1),
    ]
    assert content_digest(PATH, Selection()) == content_digest(PATH)
    assert len({content_digest(PATH, selection) for selection in selections}) == len(selections)
    lengths = [len(TrainingRows(PATH, "utterance", selection=selection).read()) for selection in selections]
    assert lengths[0] == lengths[3] == 200
    assert lengths[1] < lengths[2] < 200


def test_the_data_module_says_what_shuffling_does_to_the_guarantee() -> None:
    assert DialogueDataModule(PATH).privacy_caveat is None
    assert "not of the people" in str(DialogueDataModule(PATH, shuffle_trees=1).privacy_caveat)


def test_a_saved_configuration_gives_the_same_selection() -> None:
    selection = Selection("Weather*", 3, 0.5)
    config = {"train_path": PATH, "keep_function": "Weather*", "shuffle_trees": 3, "keep_share": 0.5}
    assert Selection.from_config(config) == selection
    assert Selection.from_config({"train_path": PATH}) == Selection()


def test_a_release_reads_the_rows_that_the_training_takes() -> None:
    given = {"unit": "dialogue", "columns": {"text": "said"}, "redact": {"patterns": ["email"]}, "keep_share": 0.5}
    for more in ({}, given):
        config: dict[str, Any] = {"train_path": PATH, "is_public": True, **more}
        assert TrainingRows.from_config(config) == DialogueDataModule(**config).rows
