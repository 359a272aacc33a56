from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lispress_trees import corpus_trees, programs

from doppel.lispress import (
    LispressError,
    List,
    Number,
    ReaderLiteral,
    String,
    Symbol,
    TypeAnnotation,
    first_error,
    read,
    to_graph,
    write,
)
from doppel.lispress.validity import require_valid

EXAMPLES = [
    "(Yield (Event.start (^(Event) singleton (QueryEventResponse.results x))))",
    '^Unit (^(DateTime) Yield :output ^DateTime (PersonName.apply :name ^String "Joey"))',
    "(let (x0 (Now) x1 ^Date (DateTime.date x0)) (f x0 x1))",
    '(plan (revise (^(Unit) Path.apply "Create") (^(Unit) Path.apply "") (lambda (^Unit x0) x0)))',
    "(lambda (^(Option (Constraint ConfirmStatus)) x0) (Some (?= (ConfirmStatus.Accepted))))",
    "(^((List Attendee)) AlwaysTrueConstraint)",
    '(Yield :output (:start (FindNumNextEvent :number #(Number 23) :name #(PersonName "Tom"))))',
    r'(f "say \"hi\" \\ (twice)\n" "" 2L 1.50 -3 1e-3 true)',
    r"(a\ b \( -)",
    "()",
    "x",
]


@pytest.mark.parametrize("text", EXAMPLES)
def test_writing_what_was_read_gives_the_text_back(text: str) -> None:
    assert write(read(text)) == text


@given(programs)
def test_reading_what_was_written_gives_the_program_back(program) -> None:
    text = write(program)
    assert read(text) == program
    assert write(read(text)) == text
    assert first_error(text) is None


@given(st.text(alphabet='() ^#"\\:ab1L\n', max_size=30))
def test_any_text_is_read_to_a_fixed_point_or_refused_inside_its_bounds(text: str) -> None:
    error = first_error(text)
    if error is not None:
        assert 0 <= error.position <= len(text)
    try:
        once = write(read(text))
    except LispressError as failure:
        assert error is not None and (error.message, error.position) == (failure.message, failure.position)
    else:
        assert write(read(once)) == once
        assert (first_error(once) is None) == (error is None)


@given(st.text())
def test_a_string_literal_stands_for_its_value(value: str) -> None:
    literal = String.of(value)
    assert literal.value == value
    assert read(write(literal)) == literal


def test_node_kinds() -> None:
    assert read('(f ^T #(Number 2) :k 2L "a" -)') == List(
        (
            Symbol("f"),
            TypeAnnotation(Symbol("T"), ReaderLiteral(List((Symbol("Number"), Number("2"))))),
            Symbol(":k"),
            Number("2L"),
            String("a"),
            Symbol("-"),
        )
    )


@pytest.mark.parametrize(
    ("kind", "spelling"),
    [
        (Symbol, "a b"),
        (Symbol, ""),
        (Symbol, "2L"),
        (Symbol, "^T"),
        (Number, "1."),
        (String, 'a"b'),
        (String, "a\\"),
    ],
)
def test_atoms_that_could_not_be_read_back_are_refused(kind, spelling: str) -> None:
    with pytest.raises(LispressError):
        kind(spelling)


@pytest.mark.slow
def test_every_tree_of_the_corpora_is_valid_and_round_trips_fast() -> None:
    trees = corpus_trees("smcalflow", "sgd")
    begin = time.process_time()
    for number, tree in enumerate(trees):
        expression = read(tree)
        assert write(expression) == tree, f"tree {number} changed"
        require_valid(expression)
    seconds = time.process_time() - begin
    assert len(trees) > 30_000
    assert seconds / len(trees) < 1e-3, "10,000 trees must take seconds"
    for tree in trees[::20]:
        graph = to_graph(read(tree))
        assert graph.roots and all(0 <= target < len(graph.nodes) for _, _, target in graph.edges)
