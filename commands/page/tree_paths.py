"""The calls of a parse tree, each by the calls around it."""

from __future__ import annotations

from collections.abc import Callable

from doppel.lispress import Expression, LispressError, List, ReaderLiteral, Symbol, TypeAnnotation, read, write
from doppel.lispress.forms import BINDERS

_DEPTH = 7


def tree_paths(tree: str, is_shown: Callable[[str], bool] = lambda name: True) -> frozenset[tuple[str, ...]]:
    """Paths of calls from the outermost one down, at most seven deep; none of a tree that cannot be read.

    ``do``, ``let`` and functions that are not shown are passed over: what they hold belongs to the call around them.
    """
    found: set[tuple[str, ...]] = set()
    try:
        todo: list[tuple[tuple[str, ...], Expression]] = [((), read(tree))]
    except LispressError:
        return frozenset()
    while todo:
        above, node = todo.pop()
        while isinstance(node, TypeAnnotation):
            node = node.body
        if isinstance(node, ReaderLiteral):
            node = node.body
        if not isinstance(node, List) or not node.items or len(above) == _DEPTH:
            continue
        head, *parts = node.items
        while isinstance(head, TypeAnnotation):
            head = head.body
        if isinstance(head, Symbol) and head.name in BINDERS and parts and isinstance(parts[0], List):
            parts = [*(parts[0].items[1::2] if head.name == "let" else ()), *parts[1:]]
            path = above
        elif (isinstance(head, Symbol) and head.name == "do") or not is_shown(write(head)):
            path = above
        else:
            path = (*above, write(head))
            found.add(path)
        todo += [(path, part) for part in parts]
    return frozenset(found)
