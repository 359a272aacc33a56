"""Names as slots: what is left of a name, and that nothing else changes."""

from __future__ import annotations

import random
import re

from hypothesis import example, given
from hypothesis import strategies as st

from datamodules.reading.examples import read_examples
from doppel.grammar.slot_table import SHIPPED, slot_table
from doppel.lispress import List, String, Symbol, anonymise, is_valid, read, write
from doppel.lispress.slots import SlotKinds, distinct_values, fill_tree, fill_utterance, slots_of, to_slots
from doppel.text.occurrences import fold
from tests.lispress.lispress_trees import programs

KINDS = SlotKinds({"person": ["PersonName.apply", "PersonName"], "event": ["Event.subject_?"], "other": [":output"]})
LUNCH = (
    '(Yield (& (Event.subject_? (?= "Lunch")) (with #(PersonName "ana  Smith") (PersonName.apply "Bob") '
    '(^(Recipient) PersonName.apply "BOB") (Path.apply "output"))))'
)

names = st.one_of(st.text(alphabet="aAbB '.\"\\é1", max_size=6), st.text(max_size=5))


@st.composite
def records(draw: st.DrawFn) -> tuple[str, str]:
    """A tree with names, and an utterance that says some of them in some case among other letters."""
    quoted = draw(st.lists(names, min_size=1, max_size=4))
    heads = st.sampled_from(["PersonName.apply", "Event.subject_?", "Path.apply"])
    tree = List((Symbol("&"), *(List((Symbol(draw(heads)), String.of(name))) for name in quoted), draw(programs)))
    words = st.one_of(st.sampled_from([f(q) for q in quoted for f in (str, str.upper, str.lower)]), names)
    return write(tree), draw(st.sampled_from(["", " "])).join(draw(st.lists(words, max_size=6)))


def _says(utterance: str, name: str) -> bool:
    """In the simplest way, with blanks around it."""
    return f" {name.casefold()} " in f" {utterance.casefold()} "


#: A character as it is, and in other ways in which people type it.
_TYPED = {"é": ["é", "e\u0301", "É"], "'": ["'", "’", "ʼ"], "-": ["-", " ", "\u2011", "–", "_"]}
_TYPED |= {"i": ["i", "İ", "ı", "I"], "b": ["b", "B", "Ｂ", "b\u200b", "b\u00ad"], "ﬁ": ["ﬁ", "fi", "FI"]}


@st.composite
def typed(draw: st.DrawFn) -> tuple[str, str]:
    """A name, and another spelling of it."""
    name = draw(st.text(alphabet="éib'-ﬁ明", min_size=1, max_size=6).filter(lambda n: n.strip("'-") == n))
    return name, "".join(draw(st.sampled_from(_TYPED.get(sign, [sign]))) for sign in name)


@given(st.lists(typed(), min_size=3, max_size=3))
def test_no_spelling_of_a_name_is_left(spelled: list[tuple[str, str]]) -> None:
    """However it is typed, and where names overlap."""
    (a, typed_a), (b, typed_b), (c, typed_c) = spelled
    for names, utterance, slotted in [
        ([a], f"? {typed_a}, {typed_a}!", "? person1, person1!"),
        ([f"q{a} {b}", f"{b} {c}r"], f"? q{typed_a} {typed_b}  {typed_c}r!", "? person!"),
    ]:
        said = to_slots("".join(f'(PersonName.apply "{name}")' for name in names), utterance, KINDS).utterance
        said = re.sub("[\u200b\u00ad]", "", said)
        assert said == slotted or re.sub(r"person\d", "person", said) == slotted


def test_scripts_without_borders_have_none() -> None:
    """A particle, a preposition and any neighbour may touch the name; letters of a script with two cases may not."""
    for name, utterance, slotted in [
        ("小明", "给小明打电话", "给person1打电话"),
        ("小明", "小明小明2点call小明", "person1 person1 2点call person1"),
        ("田中", "田中さんに電話", "person1さんに電話"),
        ("ジョン・スミス", "ジョンスミスに", "person1に"),
        ("สมชาย", "โทรหาสมชายตอนนี้", "โทรหาperson1ตอนนี้"),
        ("김민수", "김민수에게", "person1에게"),
        ("محمد", "اتصل بمُحَمَّد", "اتصل بperson1"),
        ("דן", "תתקשר לדן", "תתקשר לperson1"),
        ("Anna", "给Anna打电话, Annas", "给person1打电话, Annas"),
        ("Иван", "Иванов, ИВАН", "Иванов, person1"),
        ("Jose", "José, Jose\u0301", "José, Jose\u0301"),
        ("지나", "지난주 지나", "지난주 person1"),
    ]:
        assert to_slots(f'(PersonName.apply "{name}")', utterance, KINDS).utterance == slotted
    assert slots_of("给person1打电话", KINDS) == ["person1"]
    assert fill_utterance("给person1打电话", KINDS, lambda slot: "小红") == "给小红打电话"


def test_titles_dots_and_numbers_hide_no_name() -> None:
    """A tree and its request write one name in two ways."""
    for name, utterance, slotted in [
        ("Dr. Ana Cruz", "call Dr. Ana Cruz now", "call person1 now"),
        ("Dr. Ana Cruz", "call Dr Ana Cruz.", "call person1."),
        ("Dr. Ana Cruz", "call dr.ana cruz, Ana", "call person1, Ana"),
        ("Dr. Ana Cruz", "is Ana Cruz in?", "is person1 in?"),
        ("Dr Ana Cruz", "call Dr. Ana Cruz", "call person1"),
        ("Ana Cruz", "call Dr. Ana Cruz", "call Dr. person1"),
        ("Ana Cruz", "ask ana.cruz@x.org", "ask person1@x.org"),
        ("Prof. Dr. Lee, PhD", "lee", "person1"),
        ("Mrs. Lee Jr.", "Mrs Lee or Lee Jr", "Mrs person1 or person1 Jr"),
        ("Ana2", "Ana2, ana 2, ana-2 or Ana", "person1, person1, person1 or person1"),
        ("Ana", "text Ana2 and Ana 3", "text person1 2 and person1 3"),
        ("Ana 2", "text Ana2", "text person1"),
        ("J.R. Smith", "JR Smith, J.R. Smith", "person1, person1"),
        ("JR", "J.R. said", "person1. said"),
        ("Ana", "call Ana. Now", "call person1. Now"),
        ("Room 2", "the room of 22 or Room 21", "the room of 22 or Room 21"),
        ("1.5", "15 or 1.5 of 1.55", "15 or person1 of 1.55"),
        ("Ann", "Anna2", "Anna2"),
        ("Dr", "the drama", "the drama"),
    ]:
        assert to_slots(f'(PersonName.apply "{name}")', utterance, KINDS).utterance == slotted, (name, utterance)


@example(('(& (PersonName.apply "\u115f") 0L)', "\u115f"))  # a letter that nobody sees is no name
@given(records())
def test_no_name_of_a_kind_is_left_in_tree_or_utterance(record: tuple[str, str]) -> None:
    """Its own slots aside, none of the strings that have a kind can be read in what a training sees."""
    tree, utterance = record
    slotted = to_slots(tree, utterance, KINDS)
    assert all(slotted.tree[start:end] in (*slotted.values, "") for start, end, _ in KINDS.strings(slotted.tree))
    for value in slotted.values.values():
        if not KINDS.slot.search(value) and value not in "123456789" and any(map(str.isalpha, fold(value))):
            assert not _says(slotted.utterance, value)


@given(records())
def test_a_tree_stays_well_formed_and_keeps_its_structure(record: tuple[str, str]) -> None:
    """Slotted, and filled again with values that hold quotes and backslashes."""
    tree, utterance = record
    slotted = to_slots(tree, utterance, KINDS)
    filled = fill_tree(slotted.tree, KINDS, lambda slot: f'the "{slot}" \\ of')
    for text in (slotted.tree, filled):
        assert is_valid(text) == is_valid(tree)
        assert anonymise(read(text)) == anonymise(read(tree))


@given(records(), records())
def test_it_is_a_function_of_the_record_alone(record: tuple[str, str], other: tuple[str, str]) -> None:
    """Whatever was slotted before."""
    first = to_slots(*record, KINDS)
    to_slots(*other, KINDS)
    assert to_slots(*record, KINDS) == first


@given(st.text(), st.text())
def test_any_two_texts_have_a_result(tree: str, utterance: str) -> None:
    """Also those that are no tree, or hold something that looks like a slot."""
    slotted = to_slots(tree, f"{utterance} person1 event2", KINDS)
    fill_tree(slotted.tree, KINDS, lambda slot: slot)
    assert fill_utterance("person1 " + slotted.utterance, KINDS, lambda slot: "x").startswith("x ")


@given(records())
def test_filled_with_its_values_it_says_the_same(record: tuple[str, str]) -> None:
    """The tree but for the case and the blanks of a name; where nothing in it looks like a slot already."""
    tree, utterance = record
    slotted = to_slots(tree, utterance, KINDS)
    again = to_slots(fill_tree(slotted.tree, KINDS, lambda slot: slotted.values[slot]), "", KINDS)
    assert again.tree == slotted.tree and again.values == slotted.values


def test_what_becomes_of_names() -> None:
    """Numbers follow the tree, case and blanks do not matter, a part of a word is none, a longer name wins."""
    slotted = to_slots(LUNCH, "LUNCH with Ana\tSmith, ana and bob's bobcat: lunch!", KINDS)
    assert slotted.utterance == "event1 with person1, ana and person2's bobcat: event1!"
    assert slotted.values == {"event1": "Lunch", "person1": "ana Smith", "person2": "Bob"}
    assert re.findall('"([^"]*)"', slotted.tree) == ["event1", "person1", "person2", "person2", "output"]
    overlapping = to_slots('(& (PersonName "Ana Lee") (PersonName "Lee Ann Smith"))', "Ana Lee Ann Smith", KINDS)
    assert overlapping.utterance == "person2"
    longest = to_slots('(& (PersonName "Ana") (PersonName "Ana Lee"))', "ana lee or ana", KINDS)
    assert longest.utterance == "person2 or person1"


def test_a_and_an_follow_the_value() -> None:
    """Only directly before the slot, and in the case that the model wrote."""
    values = {"event1": "interview", "event2": "lunch"}
    text = fill_utterance("An event2 or a  event1, an event3? panda event2", KINDS, lambda s: values.get(s, s))
    assert text == "A lunch or an  interview, an event3? panda lunch"


def test_the_innermost_name_of_the_table_decides() -> None:
    """Not a form further out, nor one beside; a slash asks for what is directly around."""
    kinds = SlotKinds({"city": ["At/Find/Place"], "place": ["Place", ":at"], "event": ["subject"], "own": ["A.*_?"]})
    tree = (
        '(subject (?= "a") (At (Find (Place "b"))) (Find (Place "c")) (go :at "d" "e") (go :at (is "f") :to "g") "h")'
        '(let (x0 (A.b_? (?= "i"))) (?= "j") (^(Place) f "k") (Other (A.b "l")))'
    )
    assert [(tree[a:b], kind) for a, b, kind in kinds.strings(tree)] == [
        ("a", "event"), ("b", "city"), ("c", "place"), ("d", "place"), ("e", "event"), ("f", "place"), ("g", "event"),
        ("h", "event"), ("i", "own"),
    ]  # fmt: skip


def test_values_of_a_text_differ() -> None:
    """One value a slot, and others for others as long as there are some."""
    rng = random.Random(0)
    value_of = distinct_values(lambda kind: kind + rng.choice("abc"), taken=["personA"])
    values = [value_of(slot) for slot in ("person1", "person2", "event1", "person1")]
    assert values[0] == values[3] and {values[0], values[1]} == {"personb", "personc"} and values[2][:5] == "event"


def test_the_shipped_table_on_trees_of_the_grammar() -> None:
    """They stay well-formed, and the strings that are left are those of programs."""
    table = slot_table(SHIPPED)
    for turn in read_examples("embedded:train?num=300&seed=5", "utterance"):
        assert turn.parse is not None
        slotted = to_slots(turn.parse, turn.utterance, table.kinds)
        assert is_valid(slotted.tree)
        assert slots_of(slotted.tree, table.kinds) == list(slotted.values)
        left = set(re.findall('"([^"]*)"', slotted.tree)) - set(slotted.values)
        assert left <= {"output", "time", "date", "place", "start", "end"}


def test_every_kind_of_the_shipped_table_has_values() -> None:
    """That are no slots themselves."""
    table = slot_table(SHIPPED)
    for kind in table.kinds.names:
        values = {table.draw(random.Random(seed), kind) for seed in range(30)}
        assert len(values) > 5 and not any(table.kinds.slot.search(value) for value in values)
