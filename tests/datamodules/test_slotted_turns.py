"""Names as slots in what a model reads: no training sees a name, and samples have names again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from datamodules.batches.encoded import encode_examples
from datamodules.reading.example import Example
from datamodules.reading.examples import read_examples
from datamodules.text_format import TextFormat
from doppel.errors import DataError
from doppel.grammar.slot_table import slot_table
from doppel.lispress import anonymise, read
from doppel.lispress.expression import String

TOKENIZER = AutoTokenizer.from_pretrained("models/base")
TREE = '(Yield (& (Event.subject_? (?= "Lunch")) (with (PersonName.apply "Ana") (PersonName.apply "Bob"))))'


def text_format(source: str | None, target: str, slots: str | None = "shipped") -> TextFormat:
    return TextFormat(TOKENIZER, source, target, 256, "spaced", True, slots)  # type: ignore[arg-type]


#: Words that neither the notation nor the table of slots has.
words = st.lists(st.text(alphabet="qxzßé'-\"\\", min_size=1, max_size=4), min_size=1, max_size=3).map(
    lambda parts: "zq" + " ".join(parts)
)


@given(
    names=st.lists(words, min_size=2, max_size=2, unique_by=str.lower),
    before=st.sampled_from(["", "with", "-", "person1"]),
    case=st.booleans(),
)
def test_no_training_sees_a_name(names: list[str], before: str, case: bool) -> None:
    """Neither p(y) nor p(x|y), in the prompt or the target, whatever the name's case in the utterance."""
    spelled = [String.of(name).spelling for name in names]
    tree = f'(Yield (& (Event.subject_? (?= "{spelled[0]}")) (PersonName.apply "{spelled[1]}")))'
    said = [name.upper() if case and "ß" not in name else name for name in names]
    turn = Example(f"{before} {said[1]}, {said[0]} ", tree, "u")
    for source, target in ((None, "parse"), ("parse", "utterance")):
        seen = TOKENIZER.decode(text_format(source, target).encode(turn).input_ids).lower()
        assert "zq" not in seen
        assert "person1" in seen and "event1" in seen


def test_a_row_depends_on_its_turn_alone() -> None:
    """The tokens of a turn among others are those of the turn by itself."""
    turns = read_examples("embedded:train?num=40&seed=3", "utterance")
    model = text_format("parse", "utterance")
    together = encode_examples(turns, model)
    for number in (0, 7, 39):
        alone = encode_examples([turns[number]], model)
        assert alone.row(0).tolist() == together.row(number).tolist()


def test_utterances_alone_and_labels_have_no_slots() -> None:
    """Without trees nothing says what a name is."""
    turn = Example("Lunch with Ana", TREE, "u", "calendar")
    for source in (None, "label"):
        assert text_format(source, "utterance").encode(turn) == text_format(source, "utterance", None).encode(turn)


def test_a_sample_says_the_names_of_its_prompt() -> None:
    """Those that the prompt lacks are drawn of a public list, and the same ones for the same sample."""
    model = text_format("parse", "utterance")
    prompt = TOKENIZER.decode(model.encode_prompt(TREE))
    assert "Ana" not in prompt and "person2" in prompt
    filled = model.fill("an event1 with Person2 and person3", TREE, "0 utterance 5")
    assert filled.text.startswith("a Lunch with Bob and ") and not filled.text.endswith("person3")
    assert (filled.num_given, filled.num_said, filled.num_own) == (3, 2, 1)
    assert model.fill("an event1 with Person2 and person3", TREE, "0 utterance 5") == filled
    others = {model.fill("person3", TREE, f"0 utterance {i}").text for i in range(50)}
    assert len(others) > 20 and not others & {"Ana", "Bob"}


def test_a_tree_is_filled_with_different_names_and_keeps_its_structure() -> None:
    """So that its prompt has the slots that the model wrote."""
    model, tree = text_format(None, "parse"), TREE.replace("Lunch", "event1").replace("Ana", "person1")
    tree = tree.replace("Bob", "person2")
    texts = {model.fill(tree, None, f"0 parse {i}").text for i in range(20)}
    assert len(texts) == 20
    for text in texts:
        assert anonymise(read(text)) == anonymise(read(tree))
        asked = text_format("parse", "utterance")
        assert asked.encode_prompt(text) == asked.encode_prompt(tree)


def test_a_sampled_tree_has_public_names_whatever_the_model_wrote() -> None:
    """A name where a slot is expected, or a slot of another kind; strings that programs need stay."""
    written = '(& (PersonName.apply "Enbsto") (Event.subject_? (?= "person1")) (Path.apply "output"))'
    for i in range(20):
        text = text_format(None, "parse").fill(written, None, f"0 parse {i}").text
        assert "Enbsto" not in text and "person1" not in text and '"output"' in text
        assert anonymise(read(text)) == anonymise(read(written))


def test_weights_of_slots_do_not_serve_names() -> None:
    """Nor the other way round; weights from before there were slots fit a model without them."""
    with_slots, without = text_format("parse", "utterance"), text_format("parse", "utterance", None)
    assert with_slots.other_format(without.compatibility()) == "slots"
    assert without.other_format(with_slots.compatibility()) == "slots"
    assert without.other_format(without.compatibility()) is None
    assert text_format(None, "utterance").other_format(with_slots.compatibility()) is None


def test_a_table_of_ones_own(tmp_path: Path) -> None:
    """Its files are beside it; another list of values is another digest, and the training's stays."""
    table, names = tmp_path / "slots.yaml", tmp_path / "names.txt"
    table.write_text("guest: {in: [Guest.name], fill: names.txt}\n")
    names.write_text("Ida\n")
    model = text_format(None, "parse", str(table))
    assert model.fill('(Invite (Guest.name "guest1"))', None, "0").text == '(Invite (Guest.name "Ida"))'
    first = slot_table(str(table))
    slot_table.cache_clear()
    names.write_text("Ida\nBo\n")
    second = slot_table(str(table))
    assert first.digest == second.digest and first.digest_with_values != second.digest_with_values


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "no table of placeholders"),
        ("person: [a]", "the kind 'person' needs"),
        ("person: {in: a, fill: person}", "the kind 'person' needs"),
        ("person: {in: [a], fill: nobody.txt}", "no values for placeholders there"),
        ("Person 1: {in: [a], fill: person}", "not a word of lower-case letters"),
        ("person: {in: [a", "no YAML"),
    ],
)
def test_a_table_that_cannot_be_used(tmp_path: Path, content: str, told: str) -> None:
    """Says where and how to mend it."""
    path = tmp_path / "slots.yaml"
    path.write_text(content)
    with pytest.raises(DataError, match=re.escape(told)):
        text_format(None, "parse", str(path))
    with pytest.raises(DataError, match="give a YAML file, or 'shipped'"):
        slot_table(str(tmp_path / "none.yaml"))
