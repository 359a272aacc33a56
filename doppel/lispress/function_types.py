"""Which functions a tree uses: the unit of the function-overlap, chi-square and top-k metrics."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from doppel.lispress.calls import values
from doppel.lispress.expression import Expression, LispressError, Symbol
from doppel.lispress.graph import PARAMETER, is_literal, to_graph
from doppel.lispress.reader import read
from doppel.lispress.validity import require_valid

Counting = Literal["node_labels", "call_heads"]
"""What counts as a function type."""


def function_types(tree: Expression | str, counting: Counting = "node_labels") -> list[str]:
    """Return the function types of a tree, with repeats, in the order of the text.

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
    """
    expression = read(tree) if isinstance(tree, str) else tree
    if counting == "node_labels":
        return [label for label in to_graph(expression).nodes if not (is_literal(label) or label == PARAMETER)]
    require_valid(expression)
    return [call.function for _, _, call in values(expression) if call is not None]


@lru_cache(maxsize=1 << 16)
def valid_function_types(tree: str, counting: Counting) -> tuple[str, ...] | None:
    """Return the function types of a tree as in `function_types`, or None where it is not well-formed."""
    try:
        return tuple(function_types(tree, counting))
    except LispressError:
        return None


def uses_function(tree: str | None, pattern: str) -> bool:
    """Return whether a tree calls a function of a name; None and trees that are not well-formed call nothing.

    Args:
        tree: Lispress.
        pattern: A call head such as ``WeatherQueryApi``, or the start of one and a star: ``EventOnDate*``.

    Raises:
        ValueError: The pattern is empty, or has a star elsewhere than at its end.
    """
    name = pattern.removesuffix("*")
    if not name or "*" in name:
        raise ValueError(f"{pattern!r} is no function pattern: give a name, or the start of one and a star")
    heads = (None if tree is None else valid_function_types(tree, "call_heads")) or ()
    return any(head.startswith(name) if pattern.endswith("*") else head == name for head in heads)


def bare_symbols(tree: Expression) -> set[str]:
    """Return the names that stand bare for a value in a well-formed tree, such as ``true``, and that nothing binds."""
    return {node.name for node, bound, _ in values(tree) if isinstance(node, Symbol) and node.name not in bound}
