"""Codebooks: themes and topics are called by public sentences, and a text's topic is a function of this text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doppel.errors import DataError
from doppel.privacy.histogram import unit_sums
from doppel.text.contrast import words_of_groups
from doppel.text.topics import NO_NAME, UNLIKE, Codebook, _grouped, make_clusters, make_codebook

TEXTS = ["wake me at six", "set an alarm for seven", "alarm at nine"] * 10 + ["order a pizza", "pizza with olives"] * 10


def vectors(texts: list[str], seed: int = 0) -> np.ndarray:
    """Unit vectors near one axis for alarms, near another for pizza."""
    rng = np.random.default_rng(seed)
    place = np.array([0 if "pizza" not in text else 1 for text in texts])
    found = np.eye(4)[place] + 0.05 * rng.standard_normal((len(texts), 4))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


def around(axis: int, number: int, rng: np.random.Generator, spread: float = 0.05) -> np.ndarray:
    """Unit vectors near an axis, [number, 12]."""
    found = np.eye(12)[[axis] * number] + spread * rng.standard_normal((number, 12))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


def test_topics_are_the_clusters_and_are_called_by_public_sentences(tmp_path: Path) -> None:
    book = make_codebook([], TEXTS, vectors(TEXTS), 2, "an encoder")
    assert {*book.names} <= {*TEXTS} and book.themes == book.names
    found = book.nearest(vectors(TEXTS))
    of_alarms, of_pizza = {*found[:30]} - {UNLIKE}, {*found[30:]} - {UNLIKE}
    assert len(of_alarms) == len(of_pizza) == 1 and "pizza" not in of_alarms.pop() and "pizza" in of_pizza.pop()
    book.save(tmp_path / "codebook.jsonl")
    again = Codebook.load(tmp_path / "codebook.jsonl")
    assert (again.names, again.themes, again.words) == (book.names, book.themes, book.words)
    np.testing.assert_array_equal(again.centers, book.centers)
    assert again.bins == book.bins == (*book.names, UNLIKE) and again.nearest(vectors(TEXTS)) == found


def test_themes_are_divided_into_topics_by_their_size_and_names_differ() -> None:
    rng = np.random.default_rng(3)
    public = [f"large {i}" for i in range(300)] + [f"small {i}" for i in range(60)]
    own = np.concatenate([around(0, 300, rng, 0.1), around(1, 60, rng, 0.1)])
    book = make_codebook([], public, own, 8, "an encoder")
    assert len(book.names) == 8 == len({*book.names}) and len({*book.themes}) == 2
    large = [name for name, theme in zip(book.names, book.themes, strict=True) if theme.startswith("large")]
    assert all(name.startswith("large") for name in large) and 6 <= len(large) <= 7


@pytest.mark.parametrize("in_tree", [4_000, 60])
def test_themes_are_the_groups_of_texts_in_any_order_and_of_any_number(
    in_tree: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("doppel.text.topics._IN_TREE", in_tree)
    sizes, rng = (150, 90, 60, 40, 30, 30), np.random.default_rng(4)
    public = [f"{axis} {i}" for axis, size in enumerate(sizes) for i in range(size)]
    own = np.concatenate([around(axis, size, rng) for axis, size in enumerate(sizes)])
    order = rng.permutation(len(public))
    for places in (np.arange(len(public)), order):
        book = make_codebook([], [public[i] for i in places], own[places], 24, "an encoder")
        assert len({*book.themes}) == len(sizes)
        themes = dict(zip(book.names, book.themes, strict=True))
        found = [(name[0], themes[name][0]) for name in replace(book, least_cosine=None).nearest(own)]
        assert found == [(text[0], text[0]) for text in public]


def test_a_text_that_is_there_very_often_leaves_the_others_their_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("doppel.text.topics._IN_TREE", 10)
    rng = np.random.default_rng(0)
    for _ in range(40):
        times = rng.integers(1, 12, 8)
        times[0] = 400
        points = np.repeat(rng.standard_normal((8, 6)), times, axis=0)
        assert len({*_grouped(points, np.ones(len(points)), 8).tolist()}) == 8


def test_one_public_text_in_twenty_is_unlike_all_topics_and_a_stranger_is() -> None:
    rng = np.random.default_rng(1)
    public, own = [f"alarm {i}" for i in range(400)], around(0, 400, rng)
    book = make_codebook([], public, own, 3, "an encoder")
    assert book.nearest(own).count(UNLIKE) == 20
    assert book.nearest(np.eye(12, dtype=np.float32)[[5]]) == [UNLIKE]


def test_samples_unlike_all_public_texts_are_topics_that_nobody_expected_called_by_their_words(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    public = [f"set alarm {i}" for i in range(300)] + [f"play jazz {i}" for i in range(300)]
    known = np.concatenate([around(0, 300, rng), around(1, 300, rng)])
    samples = [f"scan the esim code {i}" for i in range(100)] + [f"set alarm {i}" for i in range(100)]
    own = np.concatenate([around(2, 100, rng), around(0, 100, rng)])
    book = make_codebook(samples, public, np.concatenate([own, known]), 8, "an encoder")
    assert len(book.unexpected) == 1 and "esim" in book.unexpected[0] and "alarm" not in book.unexpected[0]
    alone = make_codebook([], public, known, 8, "an encoder")
    assert book.names[:8] == alone.names, "samples change no expected topic"
    np.testing.assert_array_equal(book.centers[:8], alone.centers)
    private = np.concatenate([around(2, 50, rng, 0.02), around(0, 50, rng, 0.02), around(7, 50, rng)])
    found = book.nearest(private)
    assert found[:50].count(book.unexpected[0]) > 40 and {*found[100:]} == {UNLIKE}
    assert not {*found[50:100]} & {*book.unexpected}
    book.save(tmp_path / "codebook.jsonl")
    again = Codebook.load(tmp_path / "codebook.jsonl")
    assert again.unexpected == book.unexpected and again.nearest(private) == found


def test_samples_without_a_common_word_have_no_clear_name() -> None:
    rng = np.random.default_rng(2)
    public, known = [f"set alarm {i}" for i in range(300)], around(0, 300, rng)
    samples = ["".join(rng.choice([*"abcdefgh"], 6)) for _ in range(100)]
    book = make_codebook(samples, public, np.concatenate([around(2, 100, rng), known]), 8, "an encoder")
    assert book.unexpected[0].startswith(f"{NO_NAME}, nearest to “set alarm")


def test_few_public_texts_are_helped_by_samples_which_name_by_words() -> None:
    samples = ["wake me with an alarm"] * 15 + ["order a pizza"] * 15
    axes = np.eye(4, dtype=np.float32)
    book = make_codebook(samples, ["say alarm"] * 3, axes[[0] * 15 + [1] * 15 + [0] * 3], 2, "an encoder")
    assert book.nearest(axes[[0]])[0] == "say alarm" and "pizza" in book.nearest(axes[[1]])[0]
    assert not book.unexpected


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=20),
    st.lists(st.integers(0, 4), min_size=1),
    st.integers(0, 2),
)
def test_a_unit_of_several_rows_changes_no_bin_of_another_and_all_bins_by_at_most_one(
    others: list[tuple[int, int]], added: list[int], num_unexpected: int
) -> None:
    """Axes 0, 1 and 2 are topics, of which nobody may have expected the last; the others are unlike them."""
    book = Codebook(
        ("a", "b", "c"), np.eye(5, dtype=np.float32)[:3], "", 0.9, ("a", "a", "c"), {}, num_unexpected=num_unexpected
    )

    def topics(rows: list[tuple[str, int]]) -> list[str]:
        return book.nearest(np.eye(5, dtype=np.float32)[[axis for _, axis in rows]])

    def sums(rows: list[tuple[str, int]]) -> np.ndarray:
        units = [(unit, {topic: 1.0}) for (unit, _), topic in zip(rows, topics(rows), strict=True)]
        return np.array([*unit_sums(units, book.bins).values()])

    known = [(f"user {unit}", axis) for unit, axis in others]
    more = known + [("one more", axis) for axis in added]
    assert topics(more)[: len(known)] == topics(known)
    changed = sums(more) - sums(known)
    assert np.linalg.norm(changed) <= 1 and len(changed) == 4
    assert abs(changed.sum() - 1) < 1e-6 and changed[3] == pytest.approx(
        np.mean([axis > 2 for axis in added]), abs=1e-6
    )


def test_words_are_the_groups_own_without_greetings_fillers_numbers_parts_and_second_forms() -> None:
    told = words_of_groups(
        [
            ["hi, cancel my meeting at 3pm", "please cancel the 2 meetings", "canceled meetings, thanks", "cancel it"],
            ["hi, will it rain in Paris", "doesn't it rain", "what's the rain like at 5", "does it rain, thanks"],
            ["hello, move the meeting", "moving meetings to the 5th", "please move it, Zoe", "can't move, it's late"],
        ]
    )
    words = [[word for word, _ in own] for own in told]
    assert words[0][0] in ("cancel", "canceled") and words[1][0] == "rain" and words[2][0].startswith("mov")
    every = {word for own in words for word in own}
    assert not every & {"hi", "hello", "please", "thanks", "doesn", "pm", "th", "the", "it"}
    assert all(word.isalpha() and len(own) <= 3 for own in words for word in own)
    assert sum(word.startswith("meeting") for word in words[0]) == 1
    assert words_of_groups([["the"], ["?"]]) == [[], []]


def test_a_word_that_few_texts_of_a_group_say_sets_it_not_apart() -> None:
    ((*first,), _) = words_of_groups([["play jazz"] * 30 + ["zyzzyva"], ["set alarm"] * 30])
    assert {word for word, _ in first} == {"play", "jazz"}


def test_too_few_texts_and_a_damaged_codebook_are_refused(tmp_path: Path) -> None:
    few = ["a b", "c d"] * 5
    with pytest.raises(DataError, match="3 topics.* 2 "):
        make_codebook(few, [], np.tile(np.eye(2, dtype=np.float32), (5, 1)), 3, "an encoder")
    with pytest.raises(DataError, match="3 clusters.* 2 "):
        make_clusters(few, np.tile(np.eye(2, dtype=np.float32), (5, 1)), 3, "an encoder")
    (tmp_path / "codebook.jsonl").write_text('{"name": "alarm"}\n')
    with pytest.raises(DataError, match=r"codebook\.jsonl"):
        Codebook.load(tmp_path / "codebook.jsonl")
