from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from lispress_trees import corpus_trees, programs

from doppel.lispress import (
    Expression,
    Graph,
    LispressError,
    List,
    ReaderLiteral,
    String,
    Symbol,
    TypeAnnotation,
    anonymise,
    function_types,
    read,
    to_graph,
    uses_function,
    write,
)


def graph(text: str) -> Graph:
    return to_graph(read(text))


def triples(g: Graph) -> Counter[tuple[str, str, str]]:
    return Counter((g.nodes[source], label, g.nodes[target]) for source, label, target in g.edges)


def test_arguments_keywords_and_type_arguments_label_the_edges() -> None:
    g = graph('(^(Event) f (g) :k "a" 2L (^((List A)) h))')
    assert g.nodes == ("f", "Event", "g", '"a"', "2L", "h", "List", "A")
    assert g.edges == (
        (0, ":type-arg0", 1),
        (0, ":arg0", 2),
        (0, ":k", 3),
        (0, ":arg1", 4),
        (0, ":arg2", 5),
        (5, ":type-arg0", 6),
        (6, ":type-arg0", 7),
    )


def test_a_type_ascription_is_an_edge_of_its_own() -> None:
    g = graph("^Unit (^(A) f :k ^(List B) (g))")
    assert triples(g) == Counter(
        [("f", ":type", "Unit"), ("f", ":type-arg0", "A"), ("f", ":k", "g"), ("g", ":type", "List"),
         ("List", ":type-arg0", "B")]
    )  # fmt: skip


def test_let_shares_one_node_among_all_uses() -> None:
    g = graph("(let (x0 (Now)) (f (g x0) (h x0) x0))")
    now = g.nodes.index("Now")
    assert g.nodes.count("Now") == 1
    assert sum(target == now for _, _, target in g.edges) == 3
    assert triples(g) == triples(graph("(f (g (Now)) (h (Now)) (Now))"))
    assert g.roots == (g.nodes.index("f"),)


def test_scopes_nest_and_shadow() -> None:
    assert triples(graph("(let (x0 (a) x1 (f x0)) (g x0 x1))")) == triples(graph("(let (x1 (a)) (g x1 (f x1)))"))
    shadowed = graph("(let (x0 (a)) (f (let (x0 (g x0)) (h x0)) x0))")
    assert triples(shadowed) == Counter(
        [("f", ":arg0", "h"), ("h", ":arg0", "g"), ("g", ":arg0", "a"), ("f", ":arg1", "a")]
    )
    alias = graph("(let (x0 (a) x1 x0) (f x0 x1))")
    assert alias.edges == ((1, ":arg0", 0), (1, ":arg1", 0))


def test_do_makes_one_root_per_statement() -> None:
    g = graph("(let (x0 (a)) (do (f x0) (g x0)))")
    assert [g.nodes[root] for root in g.roots] == ["f", "g"] and "do" not in g.nodes


def test_a_lambda_shares_its_parameter_and_forgets_its_name() -> None:
    g = graph("(lambda (^Unit x0) (f x0 x0))")
    parameter = g.edges[0][2]
    assert sum(target == parameter for _, _, target in g.edges) == 3
    assert g == graph("(lambda (^Unit x5) (f x5 x5))")


def test_old_literals_equal_the_bare_ones() -> None:
    assert graph('(f #(Number 23) #(String "a") #(Boolean true))') == graph('(f 23 "a" true)')
    assert triples(graph('(f #(PersonName "Tom"))'))[("PersonName", ":arg0", '"Tom"')] == 1


@given(programs)
def test_a_graph_is_acyclic_connected_to_its_roots_and_as_large_as_the_program(program: Expression) -> None:
    g = to_graph(program)
    successors: dict[int, list[int]] = {}
    indegree = Counter(target for _, _, target in g.edges)
    for source, _, target in g.edges:
        successors.setdefault(source, []).append(target)
    ready, seen = list(g.roots), 0
    while ready:
        node = ready.pop()
        seen += 1
        for target in successors.get(node, ()):
            indegree[target] -= 1
            if not indegree[target]:
                ready.append(target)
    assert seen == len(g.nodes) > 0
    assert len(set(g.edges)) == len(g.edges)


def test_an_ill_formed_tree_has_no_graph() -> None:
    with pytest.raises(LispressError) as caught:
        graph("(f (2 a))")
    assert caught.value.position == 4
    for counting in ("node_labels", "call_heads"):
        with pytest.raises(LispressError):
            function_types("(f (2 a))", counting)


def test_function_types_in_both_countings() -> None:
    text = '(let (x0 (^(Event) f 2L "a")) (do (f x0 true :k -3) (g (lambda (^Unit x1) x1) #(Int 5))))'
    assert function_types(text) == ["f", "Event", "f", "true", "g", "lambda", "Unit", "Int"]
    assert function_types(text, "call_heads") == ["let", "f", "do", "f", "g", "lambda"]
    assert function_types(read(text)) == function_types(text)


@pytest.mark.parametrize(
    ("tree", "pattern", "uses"),
    [
        ("(Yield (EventOnDate (Now)))", "EventOnDate", True),
        ("(Yield (EventOnDateTime (Now)))", "EventOnDate", False),
        ("(Yield (EventOnDateTime (Now)))", "EventOnDate*", True),
        ('(Yield (PersonName "EventOnDate"))', "EventOnDate*", False),  # what the user says is no function
        ("(^(EventOnDate) Pick)", "EventOnDate", False),  # nor is a type
        ("(EventOnDate", "EventOnDate", False),
        (None, "EventOnDate", False),
    ],
)
def test_a_pattern_names_call_heads_alone(tree: str | None, pattern: str, uses: bool) -> None:
    assert uses_function(tree, pattern) == uses


def test_smcalflow_has_about_four_hundred_function_types() -> None:
    trees = corpus_trees("smcalflow", fields=("lispress",))
    labels = {label for tree in trees for label in function_types(tree)}
    heads = {head for tree in trees for head in function_types(tree, "call_heads")}
    assert 390 <= len(labels) <= 431 and 370 <= len(heads) <= 404
    assert {"Yield", "Event", "true", "?="} <= labels and not labels & {"x0", "let", "0", ":duration"}
    assert heads - labels == {"let", "do"}


@given(programs)
def test_anonymising_hides_every_string_and_keeps_everything_else(program: Expression) -> None:
    hidden = anonymise(program)
    assert {node.spelling for node in nodes(hidden) if isinstance(node, String)} <= {"STRING"}
    assert [blind(node) for node in nodes(hidden)] == [blind(node) for node in nodes(program)]
    assert anonymise(hidden) == hidden
    assert function_types(hidden) == function_types(program)


def test_anonymous_text() -> None:
    assert write(anonymise(read('(f "a" (g "") :k #(PersonName "b") 2L)'))) == (
        '(f "STRING" (g "STRING") :k #(PersonName "STRING") 2L)'
    )


def nodes(expression: Expression) -> list[Expression]:
    """All nodes in preorder, by plain recursion."""
    parts: tuple[Expression, ...] = ()
    if isinstance(expression, List):
        parts = expression.items
    elif isinstance(expression, TypeAnnotation):
        parts = (expression.type, expression.body)
    elif isinstance(expression, ReaderLiteral):
        parts = (expression.body,)
    return [expression, *(node for part in parts for node in nodes(part))]


def blind(node: Expression) -> object:
    """What anonymising must keep of one node."""
    return node if not isinstance(node, (List, TypeAnnotation, ReaderLiteral, String)) else type(node)


def test_expressions_of_any_depth_are_handled_without_recursion() -> None:
    deep: Expression = String("a")
    for _ in range(5_000):
        deep = List((Symbol("f"), deep))
    assert len(to_graph(deep).nodes) == 5_001
    assert write(anonymise(deep)).count('"STRING"') == 1
    assert len(function_types(deep, "call_heads")) == 5_000
