"""Trees become actions and actions become the same trees again."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parsing_cases import TREES, UTTERANCE, canonical, decode, describe, labels_and_triples, vocabulary

from doppel.errors import UserError
from doppel.lispress import Expression, List, String, Symbol, first_error, read, to_graph, write
from doppel.lispress.from_graph import to_expression
from doppel.parsing import ActionVocabulary, ParserMachine, encode
from doppel.parsing.build_order import build_steps
from doppel.parsing.vocabulary import COPY, STRING_CLOSE, STRING_OPEN
from doppel.text.words import pieces_of
from tests.lispress.lispress_trees import corpus_trees, programs

VOCABULARY = vocabulary()


def round_trip(tree: str, utterance: str, v: ActionVocabulary) -> str:
    """Encode and decode a tree, check that the graph is the same, and return the text that the machine writes."""
    gold = to_graph(read(tree))
    actions = encode(tree, utterance, v)
    assert actions is not None
    assert labels_and_triples(decode(actions, utterance, v)) == labels_and_triples(gold)
    source = pieces_of(utterance)
    machine = ParserMachine(v, len(source), len(actions.ids) + 1)
    for action, pointer, copy in list(zip(*actions, strict=True))[1:]:
        machine.apply(action, pointer, copy)
    assert machine.done and machine.actions == actions
    text = machine.lispress(source)
    assert first_error(text) is None
    assert labels_and_triples(to_graph(read(text))) == labels_and_triples(gold)
    assert canonical(to_graph(read(text))) == canonical(gold)
    return text


@given(st.text())
def test_no_character_of_an_utterance_is_lost(utterance: str) -> None:
    pieces = pieces_of(utterance)
    assert "".join(pieces) == utterance and all(pieces)


def test_words_and_marks_are_pieces() -> None:
    assert pieces_of("Can't it wait,  Ana?\n") == ["Can", "'", "t", " it", " wait", ",", "  Ana", "?", "\n"]


@pytest.mark.parametrize("tree", TREES)
def test_every_construct_round_trips(tree: str) -> None:
    assert canonical(to_graph(read(round_trip(tree, UTTERANCE, VOCABULARY)))) == canonical(to_graph(read(tree)))


@settings(max_examples=300)
@given(programs)
def test_any_program_is_written_from_its_graph(program: Expression) -> None:
    graph = to_graph(program)
    text = write(to_expression(graph, constants=()))
    assert first_error(text) is None
    assert labels_and_triples(to_graph(read(text))) == labels_and_triples(graph)
    if build_steps(graph) is not None:
        assert canonical(to_graph(read(text))) == canonical(graph)


@settings(max_examples=300)
@given(programs, st.text(max_size=12))
def test_any_program_within_the_language_round_trips(program: Expression, utterance: str) -> None:
    tree = write(program)
    steps = build_steps(to_graph(program))
    if steps is not None and tree != '""':  # which gives a vocabulary nothing to hold
        round_trip(tree, utterance, ActionVocabulary.build([tree]))


@given(st.text(), st.text(max_size=20))
def test_any_string_can_be_said_in_bytes_and_copies(value: str, utterance: str) -> None:
    tree = write(List((Symbol("g"), String.of(value))))
    actions = encode(tree, utterance + value, VOCABULARY)
    assert actions is not None
    assert String(decode(actions, utterance + value, VOCABULARY).nodes[1][1:-1]).value == value


def test_strings_are_copied_in_runs_and_their_first_blank_is_dropped() -> None:
    utterance = "lunch at noon: call lunch with Ana"
    actions = encode('(g "lunch with Ana")', utterance, VOCABULARY)
    assert actions is not None
    copied = [copy for id, copy in zip(actions.ids, actions.copies, strict=True) if id == COPY]
    assert [pieces_of(utterance)[copy] for copy in copied] == [" lunch", " with", " Ana"]
    assert actions.ids.count(STRING_OPEN) == actions.ids.count(STRING_CLOSE) == 1
    lower = encode('(g "lunch with ana")', utterance, VOCABULARY)
    assert lower is not None and lower.ids.count(COPY) == 2


def test_pointers_name_node_actions_and_only_arcs_have_them() -> None:
    actions = encode("(let (x0 (a)) (f x0 (g x0)))", "", VOCABULARY)
    assert actions is not None
    words = [describe(id, VOCABULARY) for id in actions.ids]
    assert words == ["<s>", "f", "-RA-:root", "a", "-RA-:arg0", "g", "-RA-:arg1", "-LA-:arg0", "</s>"]
    assert actions.pointers == [-1, -1, 0, -1, 1, -1, 1, 3, -1]
    assert set(actions.copies) == {-1}


def test_what_the_vocabulary_lacks_cannot_be_encoded() -> None:
    v = ActionVocabulary.build(["(f (g) 2L)"])
    assert encode("(f (g) 2L)", "", v) is not None
    assert encode("(f)", "", v) is not None
    for tree in ("(h)", "(f 3L)", "(f :k (g))", "(let (x0 (g)) (f x0 (f x0)))", "(f (g) (g) (g))"):
        assert encode(tree, "", v) is None
    for outside in ("(f :arg0 (g) (g))", "(f :arg1 (g))", "#(let (g))"):
        assert encode(outside, "", ActionVocabulary.build(["(f :arg1 (g) (let))", "(f (g) (g))"])) is None


def test_a_vocabulary_survives_json_and_forgets_the_order_of_the_trees() -> None:
    v = ActionVocabulary.build(TREES)
    assert ActionVocabulary.from_dict(json.loads(json.dumps(v.to_dict()))) == v == ActionVocabulary.build(TREES[::-1])
    assert set(v.constants) == {"x", "true", "-", r"\("}
    with pytest.raises(UserError, match="vocabulary"):
        ActionVocabulary.build(["(f", ""])


def test_an_extended_vocabulary_keeps_every_action_by_its_label() -> None:
    old = ActionVocabulary.build(['(F :a (G "x x") (H))', '(F (G "x"))'])
    new = ActionVocabulary.build(['(F :b (K "y y y") (^(Text) L "y"))', "(M (F 1) (F 2) (F 3))"])
    both = old.extended(new)
    assert old.extended(old) == old and both.extended(new) == both
    for part in (old, new):
        numbers = part.numbers_in(both)
        assert sorted(set(numbers)) == sorted(numbers) and min(numbers) == 0 and len(numbers) == len(part)
        back = both.numbers_in(part)
        assert [back[number] for number in numbers] == list(range(len(part)))
        assert back.count(-1) == len(both) - len(part)
        assert all(part.is_arc(action) == both.is_arc(number) for action, number in enumerate(numbers))
    assert encode('(F :b (K "y x") (H))', "x y", both) is not None
    assert encode('(F :b (K "y x") (H))', "x y", new) is None


def test_actions_out_of_place_are_refused() -> None:
    actions = encode("(f (g))", "", VOCABULARY)
    assert actions is not None
    unfinished = type(actions)(*(values[:-1] for values in actions))
    with pytest.raises(ValueError, match="done"):
        decode(unfinished, "", VOCABULARY)
    astray = actions._replace(pointers=[-1, -1, 0, -1, 3, -1])
    with pytest.raises(ValueError, match="point"):
        decode(astray, "", VOCABULARY)
    early = actions._replace(ids=[*actions.ids[:2], actions.ids[-1], *actions.ids[3:]])
    with pytest.raises(ValueError, match=r"allowed\(\)"):
        decode(early, "", VOCABULARY)


@pytest.mark.slow
def test_a_sample_of_the_corpora_round_trips() -> None:
    for folder in ("smcalflow", "sgd"):
        trees = corpus_trees(folder, fields=("lispress",))[::24]
        v = ActionVocabulary.build(trees)
        same = sum(round_trip(tree, "", v) == tree for tree in trees)
        assert same > 0.99 * len(trees), "most trees come back letter by letter"


@pytest.mark.slow
@pytest.mark.hours
def test_every_tree_of_the_corpora_round_trips() -> None:
    for folder in ("smcalflow", "sgd"):
        trees = corpus_trees(folder, fields=("lispress",))
        v = ActionVocabulary.build(trees)
        for tree in trees:
            round_trip(tree, "", v)


@pytest.mark.slow
def test_typed_trees_round_trip() -> None:
    trees = corpus_trees("smcalflow", fields=("fully_typed_lispress",))
    inside = [tree for tree in trees if build_steps(to_graph(read(tree))) is not None]
    assert len(inside) > 0.95 * len(trees)
    v = ActionVocabulary.build(trees)
    for tree in inside[::5]:
        round_trip(tree, "", v)
