"""Which functions a tree uses: the unit of the function-overlap, chi-square and top-k metrics."""

from __future__ import annotations

import re
from typing import Literal

from doppel.lispress.expression import (
    NUMBER_PATTERN,
    Expression,
    List,
    ReaderLiteral,
    Symbol,
    TypeAnnotation,
)
from doppel.lispress.graph import PARAMETER, to_graph
from doppel.lispress.reader import read
from doppel.lispress.validity import require_valid

Counting = Literal["node_labels", "call_heads"]
"""What counts as a function type."""

_IS_NUMBER = re.compile(NUMBER_PATTERN).fullmatch


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


def _discrete_labels(tree: Expression) -> list[str]:
    return [
        label
        for label in to_graph(tree).nodes
        if not label.startswith('"') and label != PARAMETER and not _IS_NUMBER(label)
    ]


def _call_heads(tree: Expression) -> list[str]:
    require_valid(tree)
    heads: list[str] = []
    todo: list[Expression] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, TypeAnnotation):
            todo.append(node.body)
        elif isinstance(node, ReaderLiteral) and isinstance(node.body, List):
            todo.extend(reversed(node.body.items[1:]))
        elif isinstance(node, List):
            head, *arguments = node.items
            if isinstance(head, TypeAnnotation):
                head = head.body
            assert isinstance(head, Symbol)
            heads.append(head.name)
            if head is node.items[0] and head.name in ("let", "lambda"):
                names, body = arguments
                assert isinstance(names, List)
                arguments = [*names.items[1::2], body] if head.name == "let" else [body]
            todo.extend(reversed(arguments))
    return heads
