"""The walk over values: in the order of the text, and it knows what is bound where."""

from __future__ import annotations

from hypothesis import given
from lispress_trees import programs

from doppel.lispress import List, Symbol, read
from doppel.lispress.calls import call_of, values
from doppel.lispress.expression import is_variable
from doppel.lispress.validity import require_valid


@given(programs)
def test_every_variable_of_a_well_formed_tree_is_bound_where_it_stands(program) -> None:
    require_valid(program)
    for node, bound, call in values(program):
        assert (call is not None) == isinstance(node, List)
        if isinstance(node, Symbol):
            assert not is_variable(node.name) or node.name in bound


def test_a_name_is_bound_behind_its_value_and_inside_its_form_alone() -> None:
    tree = read('(f (let (x0 (g) x1 (h x0)) (k x1 :to x0)) (lambda (^T x2) (m "s" x2 #(N a))) b)')
    told = [
        (call.function if call else str(getattr(node, "name", "")), *sorted(bound))
        for node, bound, call in values(tree)
    ]
    assert told == [
        ("f",),
        ("let",),
        ("g",),
        ("h", "x0"),
        ("x0", "x0"),
        ("k", "x0", "x1"),
        ("x1", "x0", "x1"),
        ("x0", "x0", "x1"),
        ("lambda",),
        ("m", "x2"),
        ("", "x2"),
        ("x2", "x2"),
        ("", "x2"),
        ("a", "x2"),
        ("b",),
    ]


def test_a_call_is_taken_apart() -> None:
    call = call_of(read("(^(T (L T)) f a :k (g) :l b)"))  # type: ignore[arg-type]
    assert (call.function, len(call.types), call.parameters) == ("f", 2, ())
    assert [argument.keyword for argument in call.arguments] == ["", ":k", ":l"]
