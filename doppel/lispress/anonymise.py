"""Hide what the user said inside a tree."""

from __future__ import annotations

from doppel.lispress.expression import Expression, List, ReaderLiteral, String, TypeAnnotation

ANONYMOUS_STRING = String("STRING")
"""What every quoted string becomes."""


def anonymise(expression: Expression) -> Expression:
    """The expression with every quoted string replaced by ``"STRING"``.

    Names, places and titles of the user sit in quoted strings; functions, types and numbers stay.

    Args:
        expression: Any expression, however deep.

    Returns:
        A new expression of the same shape.
    """
    done: list[Expression] = []
    todo: list[tuple[Expression, bool]] = [(expression, False)]
    while todo:
        node, parts_done = todo.pop()
        if isinstance(node, String):
            done.append(ANONYMOUS_STRING)
        elif isinstance(node, List):
            if not parts_done:
                todo.append((node, True))
                todo.extend((item, False) for item in reversed(node.items))
            else:
                first = len(done) - len(node.items)
                done[first:] = [List(tuple(done[first:]))]
        elif isinstance(node, TypeAnnotation):
            if not parts_done:
                todo += ((node, True), (node.body, False), (node.type, False))
            else:
                done[-2:] = [TypeAnnotation(done[-2], done[-1])]
        elif isinstance(node, ReaderLiteral):
            if not parts_done:
                todo += ((node, True), (node.body, False))
            else:
                done[-1:] = [ReaderLiteral(done[-1])]
        else:
            done.append(node)
    return done[0]
