"""Well-formed trees taken apart: what a call is made of, and a walk over values that knows what is bound where."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from doppel.lispress.expression import Expression, List, ReaderLiteral, Symbol, TypeAnnotation, write

BINDERS = ("let", "lambda")
"""Heads of the forms that bind variables."""


class Argument(NamedTuple):
    """A value in a call.

    Attributes:
        keyword: Its name, with the colon; empty if it has none.
        value: The value.
        binds: Variables of the call that it may use.
    """

    keyword: str
    value: Expression
    binds: tuple[str, ...] = ()


class Call(NamedTuple):
    """A call, ``let`` or ``lambda``.

    Attributes:
        function: What stands at its head.
        types: Type arguments of the function.
        parameters: Variables that it binds, each with its type; only ``let`` and ``lambda`` have some.
        arguments: Values in it, in the order of the text: of ``let`` a value for each variable and the body, of
            ``lambda`` the body.
    """

    function: str
    types: tuple[Expression, ...]
    parameters: tuple[tuple[str, Expression | None], ...]
    arguments: tuple[Argument, ...]


class Value(NamedTuple):
    """A part of a tree that stands for a value.

    Attributes:
        node: The part.
        bound: Variables that it may use.
        call: The part taken apart, if it is a call.
    """

    node: Expression
    bound: frozenset[str]
    call: Call | None


def call_of(node: List) -> Call:
    """Take a call of a well-formed tree apart."""
    head, *rest = node.items
    if isinstance(head, Symbol) and head.name in BINDERS:
        names, body = rest
        assert isinstance(names, List)
        if head.name == "let":
            binders, values = names.items[::2], names.items[1::2]
        else:
            binders, values = names.items, ()
        parameters = tuple(
            (write(b.body), b.type) if isinstance(b, TypeAnnotation) else (write(b), None) for b in binders
        )
        bound = tuple(name for name, _ in parameters)
        arguments = [Argument("", value, bound[:place]) for place, value in enumerate(values)]
        return Call(head.name, (), parameters, (*arguments, Argument("", body, bound)))
    types: tuple[Expression, ...] = ()
    if isinstance(head, TypeAnnotation):
        assert isinstance(head.type, List)
        types, head = head.type.items, head.body
    found, keyword = list[Argument](), ""
    for item in rest:
        if not keyword and isinstance(item, Symbol) and item.is_keyword:
            keyword = item.name
        else:
            found.append(Argument(keyword, item))
            keyword = ""
    return Call(write(head), types, (), tuple(found))


def values(tree: Expression) -> Iterator[Value]:
    """Yield the parts of a well-formed tree that stand for values, in the order of the text."""
    todo: list[tuple[Expression, frozenset[str]]] = [(tree, frozenset())]
    while todo:
        node, bound = todo.pop()
        call = call_of(node) if isinstance(node, List) else None
        yield Value(node, bound, call)
        if call is not None:
            todo += [(argument.value, bound.union(argument.binds)) for argument in reversed(call.arguments)]
        elif isinstance(node, TypeAnnotation):
            todo.append((node.body, bound))
        elif isinstance(node, ReaderLiteral):
            assert isinstance(node.body, List)
            todo += [(value, bound) for value in reversed(node.body.items[1:])]
