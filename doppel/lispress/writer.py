"""From expression to text, on one line with single blanks."""

from __future__ import annotations

from doppel.lispress.expression import Expression, List, Number, ReaderLiteral, String, Symbol


def write(expression: Expression) -> str:
    """The text of an expression: the inverse of `doppel.lispress.read`.

    ``read(write(e)) == e`` for every expression, and ``write(read(t)) == t`` for text with single blanks.

    Args:
        expression: Any expression, however deep.

    Returns:
        One line of Lispress.
    """
    pieces: list[str] = []
    todo: list[Expression | str] = [expression]
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            pieces.append(item)
        elif isinstance(item, Symbol):
            pieces.append(item.name)
        elif isinstance(item, List):
            pieces.append("(")
            todo.append(")")
            for position in range(len(item.items) - 1, -1, -1):
                todo.append(item.items[position])
                if position:
                    todo.append(" ")
        elif isinstance(item, String):
            pieces.append(f'"{item.spelling}"')
        elif isinstance(item, Number):
            pieces.append(item.spelling)
        elif isinstance(item, ReaderLiteral):
            pieces.append("#")
            todo.append(item.body)
        else:
            pieces.append("^")
            todo += (item.body, " ", item.type)
    return "".join(pieces)
