"""Which functions a tree uses: the unit of the function-overlap, chi-square and top-k metrics."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Literal

from doppel.lispress.expression import (
    Expression,
    LispressError,
    List,
    ReaderLiteral,
    Symbol,
    TypeAnnotation,
    is_number,
    write,
)
from doppel.lispress.forms import BINDERS
from doppel.lispress.graph import PARAMETER, to_graph
from doppel.lispress.reader import read
from doppel.lispress.validity import require_valid

Counting = Literal["node_labels", "call_heads"]
"""What counts as a function type."""


def function_types(tree: Expression | str, counting: Counting = "node_labels") -> list[str]:
    """The function types of a tree, with repeats, in the order of the text.

    Args:
        tree: An expression or its text.
        counting: ``"node_labels"`` counts the discrete labels of the graph's nodes: functions, types (type
            arguments included) and constants such as ``true``; no strings, numbers or variables, and a value
            shared by ``let`` once. ``"call_heads"`` counts the first symbol of every call, ``let``, ``do``
            and ``lambda`` included, and no types.

    Returns:
        Labels, such as ``["Yield", "Event.start", "singleton", "Event"]``.

    Raises:
        LispressError: The tree is not well-formed in the sense of `doppel.lispress.first_error`; the position
            counts in its text with single blanks.
        ValueError: `counting` is neither of the two.
    """
    if counting not in ("node_labels", "call_heads"):
        raise ValueError(f"counting is {counting!r}: use 'node_labels' or 'call_heads'")
    expression = read(tree) if isinstance(tree, str) else tree
    return _discrete_labels(expression) if counting == "node_labels" else _call_heads(expression)


@lru_cache(maxsize=1 << 16)
def valid_function_types(tree: str, counting: Counting) -> tuple[str, ...] | None:
    """The function types of a tree as in `function_types`, or None where it is not well-formed."""
    try:
        return tuple(function_types(tree, counting))
    except LispressError:
        return None


def uses_function(tree: str | None, pattern: str) -> bool:
    """Whether a tree calls a function of a name.

    Args:
        tree: Lispress; None and trees that are not well-formed call nothing.
        pattern: A call head such as ``WeatherQueryApi``, or the start of one and a star: ``EventOnDate*``.

    Returns:
        True where some call head equals the name, or starts with it.

    Raises:
        ValueError: The pattern is empty, or has a star elsewhere than at its end.
    """
    name = pattern.removesuffix("*")
    if not name or "*" in name:
        raise ValueError(f"{pattern!r} is no function pattern: give a name, or the start of one and a star")
    heads = (None if tree is None else valid_function_types(tree, "call_heads")) or ()
    return any(head.startswith(name) if pattern.endswith("*") else head == name for head in heads)


def bare_symbols(tree: Expression) -> set[str]:
    """The names that stand bare for a value, such as ``true``, and that no ``let`` or ``lambda`` binds.

    Args:
        tree: A well-formed expression.

    Returns:
        The names; a name that is bound anywhere in the tree is not among them.
    """
    found: set[str] = set()
    bound: set[str] = set()
    for node in _values(tree):
        if isinstance(node, Symbol) and not node.is_keyword:
            found.add(node.name)
        elif isinstance(node, List) and (binder := _binder(node)):
            names = node.items[1]
            assert isinstance(names, List)
            for name in names.items[:: 2 if binder == "let" else 1]:
                bound.add(write(name.body if isinstance(name, TypeAnnotation) else name))
    return found - bound


def _discrete_labels(tree: Expression) -> list[str]:
    labels = to_graph(tree).nodes
    return [label for label in labels if not (label.startswith('"') or label == PARAMETER or is_number(label))]


def _call_heads(tree: Expression) -> list[str]:
    require_valid(tree)
    heads = [node.items[0] for node in _values(tree) if isinstance(node, List)]
    return [write(head.body if isinstance(head, TypeAnnotation) else head) for head in heads]


def _values(tree: Expression) -> Iterator[Expression]:
    """The parts of a well-formed tree that stand for values, keywords among them, in the order of the text."""
    todo = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, TypeAnnotation):
            todo.append(node.body)
            continue
        yield node
        parts: tuple[Expression, ...] = ()
        if isinstance(node, ReaderLiteral):
            assert isinstance(node.body, List)
            parts = node.body.items[1:]
        elif isinstance(node, List):
            parts = node.items[1:]
            if binder := _binder(node):
                names, body = parts
                assert isinstance(names, List)
                parts = (*names.items[1::2], body) if binder == "let" else (body,)
        todo.extend(reversed(parts))


def _binder(call: List) -> str:
    """``let`` or ``lambda``, if that heads a call; otherwise nothing."""
    head = call.items[0]
    return head.name if isinstance(head, Symbol) and head.name in BINDERS else ""
