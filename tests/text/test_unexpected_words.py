"""Words that nobody expected: what one unit can move, what noise alone shows, and which words are shown."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.report.unexpected import findings
from doppel.errors import DataError
from doppel.privacy.histogram import unit_sums
from doppel.text.unexpected import ENGLISH, MOST_ROWS, NoisyWords, UnexpectedWords, forms_of, read_vocabulary

VOCABULARY = ["dentist", "rental", "taxis", "taxi", "weather", "song", "play", "the"]
REFERENCE = ["play the song", "play the weather song", "the song"] * 50
TEXTS = st.lists(st.lists(st.sampled_from([*VOCABULARY, "zyzzyva"]), max_size=6).map(" ".join), min_size=1, max_size=70)
UNITS = st.dictionaries(st.sampled_from("abcd"), TEXTS, max_size=4)


def rule(per_unit: int = 2, has_rows: bool = False) -> UnexpectedWords:
    return UnexpectedWords(VOCABULARY, REFERENCE, per_unit, has_rows)


@given(units=UNITS, more=TEXTS, per_unit=st.integers(1, 4), has_rows=st.booleans())
def test_a_unit_more_changes_its_own_choice_alone_and_the_sums_by_at_most_one(
    units: dict[str, list[str]], more: list[str], per_unit: int, has_rows: bool
) -> None:
    own = rule(per_unit, has_rows)
    rows = [(unit, text) for unit, texts in units.items() for text in texts]
    with_one = [*rows[: len(rows) // 2], *(("new", text) for text in more), *rows[len(rows) // 2 :]]
    before, after = dict(own.vectors(rows)), dict(own.vectors(with_one))
    assert {unit: after[unit] for unit in before} == before
    assert math.hypot(*after["new"].values()) <= 1 + 1e-12
    given_words = {word for word in after["new"] if word in VOCABULARY}
    said = {"taxi" if word == "taxis" else word for text in more for word in text.split()}
    assert len(given_words) <= per_unit and given_words <= said
    sums = [unit_sums(vectors.items(), own.bins) for vectors in (before, after)]
    assert math.dist(*(list(sum_.values()) for sum_ in sums)) <= 1 + 1e-9
    changed = {word for word in own.bins if word in VOCABULARY and sums[0][word] != sums[1][word]}
    assert changed == given_words


def test_a_unit_gives_the_words_that_the_reference_lacks_and_none_outside_of_the_list() -> None:
    rows = [("a", "play the weather song"), ("a", "a rental zyzzyva, a taxi"), ("b", "[TAXI] the zyzzyva")]
    chosen = {unit: list(words) for unit, words in rule().vectors(rows)}
    assert chosen == {"a": ["rental", "taxi"], "b": ["the"]}


def test_of_words_that_the_reference_says_equally_rarely_the_earlier_is_given() -> None:
    ((_, chosen),) = rule(1).vectors([("a", "play a song, taxi, dentist")])
    assert [*chosen] == ["dentist"]
    own = UnexpectedWords([*reversed(VOCABULARY)], [*REFERENCE, "dentist"], 1, False)
    ((_, chosen),) = own.vectors([("a", "dentist and taxi")])
    assert [*chosen] == ["taxis"], "the reference comes first"


def test_a_word_and_its_regular_plural_are_one_which_the_commoner_form_names() -> None:
    groups = [["ferry", "ferries"], ["taxi", "taxis"], ["rats", "rat"], ["bus", "buses"], ["hears", "hear"]]
    groups += [["hearse", "hearses"], ["menu", "menus"], ["boss"], ["bos"], ["gas"], ["ga"]]
    assert forms_of([form for group in groups for form in group[::-1]]) == {group[0]: group for group in groups}
    rows = [(f"{i}", ["a taxi", "two taxis", "play the song"][min(i % 4, 2)]) for i in range(2000)]
    own = rule(1)
    (word,) = own.found(unit_sums(own.vectors(rows), own.bins), 2000, 5.0).words
    assert (word.word, word.forms, word.share) == ("taxi", ("taxi", "taxis"), pytest.approx(0.5))
    said = UnexpectedWords(VOCABULARY, [*REFERENCE, "taxis"], 1, False)
    assert [*dict(said.vectors([("a", "taxi dentist")]))["a"]] == ["dentist"], "the reference says it in the plural"


def test_a_unit_is_read_to_its_most_rows() -> None:
    rows = [("a", "the song")] * MOST_ROWS + [("a", "taxi")]
    ((_, given_words),) = rule(has_rows=True).vectors(rows)
    assert "taxi" not in given_words and given_words["(rows)"] == pytest.approx(0.2)


@pytest.mark.slow
def test_noise_alone_shows_a_word_in_at_most_one_run_of_twenty() -> None:
    own = UnexpectedWords(read_vocabulary(ENGLISH)[:15_000], ["hello"] * 10_000, 2, False)
    assert 14_000 < len(own.bins) <= 15_000
    shown = 0
    for _ in range(20):
        sums = NoisyWords(5.0).draw(unit_sums(own.vectors([]), own.bins))
        shown += bool(own.found(sums, 10_000, 5.0).words)
    assert shown <= 4  # with probability .997


def test_what_many_say_and_the_reference_hardly_is_shown_with_its_share() -> None:
    rows = [(f"{i}", "rental taxi" if i < 300 else "play the song") for i in range(2000)]
    own = rule()
    found = own.found(unit_sums(own.vectors(rows), own.bins), 2000, 5.0)
    assert [word.word for word in found.words] == ["rental", "taxi"]
    assert all(word.low < 0.15 < word.high and word.share == pytest.approx(0.15, abs=1e-3) for word in found.words)
    assert found.words[0].high - found.words[0].share == pytest.approx(1.96 * 5 * math.sqrt(2) / 2000, rel=1e-3)


def test_intervals_of_the_words_that_noise_lifted_over_the_threshold_hold_the_truth() -> None:
    words = ["".join(pair) for pair in product("abcdefghijklmnop", repeat=2)]
    own = UnexpectedWords(words, ["hello"] * 10_000, 1, False)
    truth = {word: 4 + i % 16 for i, word in enumerate(words)}  # the threshold is at 19
    num_units = sum(truth.values())
    rows = [(f"{word}{i}", word) for word in words for i in range(truth[word])]
    shown = held = 0
    for _ in range(20):
        for word in own.found(NoisyWords(5.0).draw(unit_sums(own.vectors(rows), own.bins)), num_units, 5.0).words:
            shown += 1
            held += word.low <= truth[word.word] / num_units <= word.high
    assert shown > 100 and held >= 0.95 * shown


def test_units_of_several_rows_are_compared_with_as_many_rows_of_the_reference() -> None:
    reference = (["the song"] * 9 + ["the weather"]) * 60  # one in ten: each dialogue of ten rows says it
    rows = [(f"{i}", text) for i in range(600) for text in reference[:10]]
    alone, together = (UnexpectedWords(VOCABULARY, reference, 2, has_rows) for has_rows in (False, True))
    assert [word.word for word in alone.found(unit_sums(alone.vectors(rows), alone.bins), 600, 5.0).words] == [
        "weather"
    ]
    found = together.found(unit_sums(together.vectors(rows), together.bins), 600, 5.0)
    assert found.words == () and 10 <= found.rows_per_unit <= 14


def test_words_that_samples_say_together_are_one_finding() -> None:
    samples = ["rental of a car", "a rental car", "the dentist", "a song by the dentist", "song", "song"]
    texts = [frozenset(text.split()) for text in samples]
    assert findings(["rental", "dentist", "car", "song", "taxi"], texts) == [
        ["rental", "car"], ["dentist"], ["song"], ["taxi"],
    ]  # fmt: skip


@pytest.mark.parametrize("line", ["taxi 3", "Taxi", "two words", "t2", "song"])
def test_a_vocabulary_that_is_none_is_refused_by_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "words.txt"
    path.write_text(f"song\n{line}\n")
    with pytest.raises(DataError, match=r"words\.txt:2.*taxi"):
        read_vocabulary(path)
    path.write_text("")
    with pytest.raises(DataError, match="has no word"):
        read_vocabulary(path)


def test_the_shipped_words_are_english_forms_of_products_too_and_no_function_words() -> None:
    words = read_vocabulary(ENGLISH)
    assert {"taxi", "rental", "dentist", "esim", "whatsapp", "roaming", "ferry", "parcel", "instalment"} <= {*words}
    assert not {"the", "it", "you", "hello", "please", "thanks"} & {*words}
    assert words.index("zorra") < words.index("taxi") < words.index("company"), "the rarest first"


def test_the_threshold_that_is_told_is_the_one_that_is_needed() -> None:
    """A word that the reference never says: just above it shows, just below it does not, noise or reference binding."""
    for reference in (REFERENCE * 40, REFERENCE[:60]):
        own, n = UnexpectedWords(VOCABULARY, reference, 1, False), 2000
        least = own.found(dict.fromkeys(own.bins, 0.0), n, 5.0).least
        for factor, shown in ((0.99, []), (1.01, ["taxi"])):
            sums = dict.fromkeys(own.bins, 0.0) | {"taxi": factor * least * n}
            assert [word.word for word in own.found(sums, n, 5.0).words] == shown
    found = own.found(dict.fromkeys(own.bins, 0.0), n, 5.0)
    assert found.least_half_noise == pytest.approx(own.found(dict.fromkeys(own.bins, 0.0), n, 2.5).least)
    twice = UnexpectedWords(VOCABULARY, REFERENCE[:60] * 2, 1, False).found(dict.fromkeys(own.bins, 0.0), n, 5.0)
    assert found.least_twice_reference == pytest.approx(twice.least) and twice.least < found.least
