"""Whatever is chosen among the allowed actions, the machine ends in a well-formed program."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parsing_cases import UTTERANCE, canonical, decode, labels_and_triples, vocabulary

from doppel.lispress import first_error, read, to_graph
from doppel.parsing import ActionVocabulary, ParserMachine, encode
from doppel.parsing.vocabulary import BOS, COPY, END, PAD, STRING_CLOSE, STRING_OPEN
from doppel.text.words import pieces_of

VOCABULARY = vocabulary()
SOURCE = pieces_of(UTTERANCE)
STYLES = ("even", "deep", "wide", "shared", "lambda")


def weight(machine: ParserMachine, action: int, style: str) -> float:
    """How much a style of random walk likes an action."""
    v = machine.vocabulary
    if action == END:
        return 0.02
    if style == "lambda" and v.first_node <= action < v.first_right_arc and "lambda" in v.nodes[action - v.first_node]:
        return 20.0
    if style == "shared" and v.is_arc(action):
        return 10.0
    return 1.0


def walk(v: ActionVocabulary, seed: int, style: str, max_actions: int, check: bool = False) -> ParserMachine:
    """Choose among what is allowed until the machine is done."""
    rng = random.Random(seed)
    machine = ParserMachine(v, len(SOURCE), max_actions)
    while not machine.done:
        mask = machine.allowed()
        choices = np.flatnonzero(mask).tolist()
        assert choices and len(mask) == len(v)
        if check:
            for action in choices:
                pointers = machine.allowed_pointers(action)
                assert bool(pointers) == v.is_arc(action), "an allowed arc has somewhere to point"
                assert pointers == sorted(set(pointers), reverse=True)
        # Half of the choices fall on arcs, of which there are few, and bytes weigh little.
        action = rng.choices(choices, [weight(machine, c, style) * (1 if c < v.first_byte else 0.01) for c in choices])[
            0
        ]
        pointers = machine.allowed_pointers(action)
        pointer = -1
        if pointers:
            pointer = pointers[0] if style == "deep" else pointers[-1] if style == "wide" else rng.choice(pointers)
        machine.apply(action, pointer, rng.choice(range(machine.num_source_pieces)) if action == COPY else -1)
        assert machine.position < 40 * max_actions + 200, "the walk ends"
    return machine


def check_nearest_first(machine: ParserMachine) -> None:
    """Neighbouring arcs of one kind point farther and farther back."""
    v = machine.vocabulary
    kinds = [v.is_arc(id) * (1 + (id >= v.first_left_arc)) for id in machine.actions.ids]
    pointers = machine.actions.pointers
    for t in range(1, len(kinds)):
        assert not kinds[t] or kinds[t] != kinds[t - 1] or pointers[t] <= pointers[t - 1]
        assert (kinds[t - 1], kinds[t]) != (2, 1), "LA comes after RA"


@pytest.mark.slow
@settings(max_examples=300)
@given(st.integers(0, 2**32), st.sampled_from(STYLES), st.integers(1, 120))
def test_any_choice_of_allowed_actions_ends_in_a_well_formed_program(seed: int, style: str, max_actions: int) -> None:
    machine = walk(VOCABULARY, seed, style, max_actions, check=True)
    check_nearest_first(machine)
    text = machine.lispress(SOURCE)
    assert first_error(text) is None
    graph = machine.graph(SOURCE)
    again = to_graph(read(text))
    assert labels_and_triples(again) == labels_and_triples(graph)
    assert canonical(again) == canonical(graph)
    assert decode(machine.actions, UTTERANCE, VOCABULARY) == graph
    actions = encode(text, UTTERANCE, VOCABULARY)
    assert actions is not None
    assert canonical(decode(actions, UTTERANCE, VOCABULARY)) == canonical(graph)


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 60))
def test_a_vocabulary_without_lambda_types_and_strings_works_too(seed: int, max_actions: int) -> None:
    v = ActionVocabulary.build(["(let (x0 (a)) (f x0 (g 2L x0) :k true))"])
    machine = walk(v, seed, "even", max_actions, check=True)
    assert first_error(machine.lispress(SOURCE)) is None


def chain(v: ActionVocabulary, label: str, arc: str, num_nodes: int) -> ParserMachine:
    """Hang every node on the newest one that takes it, then let the machine finish."""
    machine = ParserMachine(v, 0, 10_000)
    for _ in range(num_nodes):
        machine.apply(v.node_ids[label])
        wanted = v.right_arc_ids[arc]
        action = wanted if machine.allowed()[wanted] else int(np.flatnonzero(machine.allowed())[0])
        machine.apply(action, machine.allowed_pointers(action)[0])
    machine.max_actions = 0
    while not machine.done:
        action = int(np.flatnonzero(machine.allowed())[-1])
        pointers = machine.allowed_pointers(action)
        machine.apply(action, pointers[0] if pointers else -1)
    return machine


@pytest.mark.parametrize(
    ("label", "arc"), [("f", ":arg0"), ("Unit", ":type"), ("List", ":type-arg0"), ("f", ":k"), ("lambda", ":arg1")]
)
def test_nesting_stays_within_what_the_reader_reads(label: str, arc: str) -> None:
    machine = nested_lambdas(120) if label == "lambda" else chain(VOCABULARY, label, arc, 250)
    text = machine.lispress([])
    assert first_error(text) is None
    assert text.count("(") > 50


def nested_lambdas(num_nodes: int) -> ParserMachine:
    """Lambdas in the bodies of lambdas, as deep as the machine lets them."""
    v = VOCABULARY
    machine = ParserMachine(v, 0, 10_000)
    for _ in range(num_nodes):
        if not machine.allowed()[v.node_ids["lambda"]]:
            break
        for label, arc in (("lambda", v.right_arc_ids[":arg1"]), ("lambda-parameter", v.right_arc_ids[":arg0"])):
            machine.apply(v.node_ids[label])
            action = arc if machine.allowed()[arc] else int(np.flatnonzero(machine.allowed())[0])
            machine.apply(action, machine.allowed_pointers(action)[0])
    machine.max_actions = 0
    while not machine.done:
        action = int(np.flatnonzero(machine.allowed())[0])
        pointers = machine.allowed_pointers(action)
        machine.apply(action, pointers[0] if pointers else -1)
    return machine


def test_a_parameter_never_leaves_its_lambda() -> None:
    v = VOCABULARY
    actions = encode("(f (lambda (x0) (g x0)) (a))", "", v)
    assert actions is not None
    machine = ParserMachine(v, 0, 100)
    for action, pointer in list(zip(actions.ids, actions.pointers, strict=True))[1:-1]:
        machine.apply(action, pointer)
    # The newest node is (a): it may use nothing that depends on the parameter, but the lambda itself.
    lambda_position = actions.ids.index(v.node_ids["lambda"])
    assert machine.allowed_pointers(v.left_arc_ids[":arg0"]) == [lambda_position]


def test_a_gap_must_be_filled_before_the_node_closes() -> None:
    v = VOCABULARY
    machine = ParserMachine(v, 0, 100)
    for label, arc, pointer in (("f", v.first_right_arc, 0), ("a", v.right_arc_ids[":arg0"], 1)):
        machine.apply(v.node_ids[label])
        machine.apply(arc, pointer)
    machine.apply(v.right_arc_ids[":arg2"], 1)
    assert not machine.allowed()[END], ":arg1 is missing"
    machine.apply(v.node_ids["h"])
    assert not machine.allowed()[v.first_right_arc], "no new statement either"
    machine.apply(v.right_arc_ids[":arg1"], 1)
    machine.apply(END)
    assert machine.lispress([]) == "(let (x0 (a)) (f x0 (h) x0))"


def test_only_what_is_allowed_can_be_done() -> None:
    machine = ParserMachine(VOCABULARY, 0, 100)
    assert not machine.allowed()[[PAD, BOS, END, COPY, STRING_CLOSE]].any()
    for action in (END, -1, len(VOCABULARY)):
        with pytest.raises(ValueError, match=r"allowed\(\)"):
            machine.apply(action)
    with pytest.raises(ValueError, match="done"):
        machine.graph([])
    with pytest.raises(ValueError, match="read-only"):
        machine.allowed()[END] = True
    machine.apply(STRING_OPEN)
    assert not machine.allowed()[COPY], "there is nothing to copy"
    machine.apply(STRING_CLOSE)
    with pytest.raises(ValueError, match=r"allowed_pointers\(\)"):
        machine.apply(VOCABULARY.first_right_arc, 1)
    machine.apply(VOCABULARY.first_right_arc, 0)
    machine.apply(END)
    assert machine.done and machine.allowed().nonzero()[0].tolist() == [PAD]
    machine.apply(PAD)
    assert machine.lispress([]) == '""' and machine.actions.ids[-1] == END


def test_the_machine_is_fast_enough_for_ninety_thousand_utterances() -> None:
    begin, num_actions = time.process_time(), 0
    machines = [walk_first(seed) for seed in range(20)]
    num_actions = sum(machine.position for machine in machines)
    assert (time.process_time() - begin) / num_actions < 500e-6


def walk_first(seed: int) -> ParserMachine:
    """Choose evenly, with nothing else than the machine's own work."""
    rng = random.Random(seed)
    machine = ParserMachine(VOCABULARY, len(SOURCE), 100)
    while not machine.done:
        action = rng.choice(machine.allowed().nonzero()[0])
        machine.apply(action, next(iter(machine.allowed_pointers(action)), -1), 0)
    return machine
