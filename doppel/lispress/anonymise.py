"""Hide what the user said inside a tree."""

from __future__ import annotations

from doppel.lispress.expression import Expression, List, ReaderLiteral, String, TypeAnnotation, parts

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
    todo = [(expression, False)]
    while todo:
        node, are_parts_done = todo.pop()
        inner = parts(node)
        if not inner:
            done.append(ANONYMOUS_STRING if isinstance(node, String) else node)
        elif not are_parts_done:
            todo.append((node, True))
            todo.extend((part, False) for part in reversed(inner))
        else:
            new = [done.pop() for _ in inner][::-1]
            if isinstance(node, List):
                done.append(List(tuple(new)))
            else:
                done.append(TypeAnnotation(*new) if isinstance(node, TypeAnnotation) else ReaderLiteral(*new))
    return done[0]
