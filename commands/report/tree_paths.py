"""The calls of a parse tree, each by the calls around it."""

from __future__ import annotations

from collections.abc import Callable

from doppel.lispress import Expression, List, ReaderLiteral, TypeAnnotation, is_valid, read
from doppel.lispress.calls import call_of

_DEPTH = 7


def tree_paths(tree: str, is_shown: Callable[[str], bool] = lambda name: True) -> frozenset[tuple[str, ...]]:
    """Paths of calls from the outermost one down, at most seven deep; none of a tree that is not well-formed.

    ``do``, ``let`` and functions that are not shown are passed over: what they hold belongs to the call around them.
    """
    found: set[tuple[str, ...]] = set()
    todo: list[tuple[tuple[str, ...], Expression]] = [((), read(tree))] if is_valid(tree) else []
    while todo:
        path, node = todo.pop()
        if isinstance(node, TypeAnnotation | ReaderLiteral):
            todo.append((path, node.body))
        elif isinstance(node, List) and len(path) < _DEPTH:
            call = call_of(node)
            if not call.parameters and call.function != "do" and is_shown(call.function):
                path = (*path, call.function)
                found.add(path)
            todo += [(path, argument.value) for argument in call.arguments]
    return frozenset(found)
