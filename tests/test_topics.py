"""Codebooks: topics have names that tell them apart, and a text's topic is a function of this text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from doppel.errors import DataError
from doppel.topics import Codebook, make_codebook, names_of

TEXTS = ["wake me at six", "set an alarm for seven", "alarm at nine"] * 10 + ["order a pizza", "pizza with olives"] * 10


def vectors(texts: list[str]) -> np.ndarray:
    """Unit vectors near one axis for alarms, near another for pizza."""
    rng = np.random.default_rng(0)
    place = np.array([0 if "pizza" not in text else 1 for text in texts])
    found = np.eye(4)[place] + 0.05 * rng.standard_normal((len(texts), 4))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


def test_topics_are_the_clusters_and_are_called_by_their_words(tmp_path: Path) -> None:
    book = make_codebook(TEXTS, vectors(TEXTS), 2, "an encoder")
    found = book.nearest(vectors(TEXTS))
    assert len(set(found[:30])) == len(set(found[30:])) == 1 and found[0] != found[-1]
    assert "alarm" in found[0] and "pizza" in found[-1]
    book.save(tmp_path / "codebook.jsonl")
    again = Codebook.load(tmp_path / "codebook.jsonl")
    assert again.names == book.names and again.encoder == "an encoder"
    np.testing.assert_array_equal(again.centers, book.centers)


def test_names_differ_and_need_no_words() -> None:
    names = names_of([["play jazz"], ["play jazz"], ["play jazz"], ["?!", "the"]])
    assert len(set(names)) == 4 and names[-1].startswith("other")
    assert names_of([["the"], ["?"]]) == ["other 1", "other 2"]


def test_names_are_the_topics_own_words_in_the_order_of_speech_without_a_second_form_of_one() -> None:
    names = names_of(
        [
            ["cancel my meeting at 3", "cancel the 2 meetings", "canceled meetings, please", "cancel that meeting"],
            ["will it rain in Paris", "is rain expected", "what's the rain like at 5", "does it rain"],
            ["move the meeting", "move my meeting to the 5th", "moving meetings", "please move it, Zoe"],
        ]
    )
    assert names[0] == "cancel meeting" and names[2] == "move meeting"
    assert "rain" in names[1].split()
    for name in names:
        words = name.split()
        assert 1 <= len(words) <= 3 and not {"the", "is", "my", "please", "meetings"} & {*words}
        assert not any(character.isdigit() for character in name)


def test_another_form_of_a_word_that_is_no_topic_names_none() -> None:
    """Seen with real embeddings: "note" for a topic of "not", "butts" for "but", "movie movies"."""
    names = names_of(
        [
            ["not now", "not that", "but not yet", "maybe later"] * 3 + ["butts are not ones"],
            ["a movie", "good movies", "which movie is on", "movies in town"] * 3,
            ["take a note", "read my notes", "a note for Ana", "notes of today"] * 3,
        ]
    )
    assert not {"note", "notes", "butts", "ones"} & {*names[0].split()}
    assert sum(word.startswith("movie") for word in names[1].split()) == 1
    assert "note" in names[2].split()


def test_too_few_texts_and_a_damaged_codebook_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="3 topics.* 2 "):
        make_codebook(["a b", "c d"] * 5, vectors(["a b", "c d"] * 5), 3, "an encoder")
    (tmp_path / "codebook.jsonl").write_text('{"name": "alarm"}\n')
    with pytest.raises(DataError, match=r"codebook\.jsonl"):
        Codebook.load(tmp_path / "codebook.jsonl")
