"""Codebooks: topics have names that tell them apart, and a text's topic is a function of this text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doppel.errors import DataError
from doppel.privacy.histogram import unit_sums
from doppel.topics import UNLIKE, Codebook, make_codebook, names_of

TEXTS = ["wake me at six", "set an alarm for seven", "alarm at nine"] * 10 + ["order a pizza", "pizza with olives"] * 10


def vectors(texts: list[str]) -> np.ndarray:
    """Unit vectors near one axis for alarms, near another for pizza."""
    rng = np.random.default_rng(0)
    place = np.array([0 if "pizza" not in text else 1 for text in texts])
    found = np.eye(4)[place] + 0.05 * rng.standard_normal((len(texts), 4))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


def test_topics_are_the_clusters_and_are_called_by_their_words(tmp_path: Path) -> None:
    book = make_codebook(TEXTS, [], vectors(TEXTS), 2, "an encoder")
    found = book.nearest(vectors(TEXTS))
    of_alarms, of_pizza = {*found[:30]} - {UNLIKE}, {*found[30:]} - {UNLIKE}
    assert len(of_alarms) == len(of_pizza) == 1 and of_alarms != of_pizza
    assert "alarm" in of_alarms.pop() and "pizza" in of_pizza.pop()
    book.save(tmp_path / "codebook.jsonl")
    again = Codebook.load(tmp_path / "codebook.jsonl")
    assert again.names == book.names and again.encoder == "an encoder"
    np.testing.assert_array_equal(again.centers, book.centers)
    assert again.bins == book.bins == (*book.names, UNLIKE) and again.nearest(vectors(TEXTS)) == found


def test_one_public_text_in_twenty_is_unlike_all_topics_and_a_stranger_is() -> None:
    """The distance is that of public texts, whatever the samples are like: far samples make it no larger."""
    rng = np.random.default_rng(1)
    public, samples = [f"alarm {i}" for i in range(400)], [f"pizza {i}" for i in range(50)]
    near = np.eye(6)[[0] * 400 + [1] * 50] + np.array([0.05] * 400 + [0.4] * 50)[:, None] * rng.standard_normal(
        (450, 6)
    )
    unit = (near / np.linalg.norm(near, axis=1, keepdims=True)).astype(np.float32)
    book = make_codebook(samples, public, np.concatenate([unit[400:], unit[:400]]), 3, "an encoder")
    assert book.nearest(unit[:400]).count(UNLIKE) == 20
    assert book.nearest(np.eye(6, dtype=np.float32)[[5]]) == [UNLIKE]


def test_samples_have_the_themes_that_a_larger_reference_lacks_and_name_their_topics() -> None:
    public = [f"say alarm {i}" for i in range(300)]
    samples = ["wake me with an alarm"] * 15 + ["order a pizza"] * 15
    axes = np.eye(4, dtype=np.float32)
    book = make_codebook(samples, public, axes[[0] * 15 + [1] * 15 + [0] * 300], 2, "an encoder")
    assert "wake" in book.nearest(axes[[0]])[0] and "pizza" in book.nearest(axes[[1]])[0], "not `say`, of public texts"
    alone = make_codebook([], public, np.tile(axes[[0, 2, 3]], (100, 1)), 3, "an encoder")
    assert alone.nearest(axes[[1]]) == [UNLIKE]


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=20), st.lists(st.integers(0, 4), min_size=1))
def test_a_unit_of_several_rows_changes_no_bin_of_another_and_all_bins_by_at_most_one(
    others: list[tuple[int, int]], added: list[int]
) -> None:
    """Axes 0 and 1 are topics, the others are unlike them."""
    book = Codebook(("a", "b"), np.eye(5, dtype=np.float32)[:2], "an encoder", 0.9)

    def sums(rows: list[tuple[str, int]]) -> np.ndarray:
        found = book.nearest(np.eye(5, dtype=np.float32)[[axis for _, axis in rows]])
        units = [(unit, {topic: 1.0}) for (unit, _), topic in zip(rows, found, strict=True)]
        return np.array([*unit_sums(units, book.bins).values()])

    known = [(f"user {unit}", axis) for unit, axis in others]
    more = known + [("one more", axis) for axis in added]
    changed = sums(more) - sums(known)
    assert np.linalg.norm(changed) <= 1 and len(changed) == 3
    assert abs(changed.sum() - 1) < 1e-6 and changed[2] == pytest.approx(
        np.mean([axis > 1 for axis in added]), abs=1e-6
    )


def test_names_differ_and_need_no_words() -> None:
    names = names_of([["play jazz"], ["play jazz"], ["play jazz"], ["?!", "the"]])
    assert len(set(names)) == 4 and names[-1].startswith("other")
    assert names_of([["the"], ["?"]]) == ["other 1", "other 2"]


def test_a_topic_whose_frequent_words_name_another_one_is_told_apart_by_a_rarer_word() -> None:
    thanks = ["thanks lot"] * 20
    names = names_of([thanks, [*thanks, "thanks lot, perfect"], thanks])
    assert names == ["thanks lot", "thanks lot perfect", "thanks lot 3"]
    assert names_of([["yes"] * 20, [*["yes"] * 20, "yes tomorrow"]]) == ["yes", "yes tomorrow"]


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
        make_codebook(["a b", "c d"] * 5, [], vectors(["a b", "c d"] * 5), 3, "an encoder")
    (tmp_path / "codebook.jsonl").write_text('{"name": "alarm"}\n')
    with pytest.raises(DataError, match=r"codebook\.jsonl"):
        Codebook.load(tmp_path / "codebook.jsonl")
