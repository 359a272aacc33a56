"""Is a text well-formed Lispress, and if not, where does it first go wrong?

:mod:`doppel.lispress.lark` says the same to a decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from doppel.lispress.calls import BINDERS
from doppel.lispress.expression import (
    Expression,
    LispressError,
    List,
    ReaderLiteral,
    Symbol,
    TypeAnnotation,
    is_variable,
    write,
)
from doppel.lispress.reader import read_with_starts

_NAME = "a name is expected here"
_KEYWORD = "a keyword where a value, a name or a type is expected"

_Bound = frozenset[str]
_Check = Callable[[Expression, _Bound], "str | list[_Part]"]
"""What is wrong with a node at its place, where some variables are bound; or its parts that are still to check."""
_Part = tuple[_Check, Expression, _Bound]


def first_error(text: str) -> LispressError | None:
    """Return the first place where a text stops being a well-formed program, or None.

    Well-formed means: exactly one expression; brackets balanced and strings closed; at the head of every call
    a function name, with or without type arguments ``^(T …)``; a value after every keyword; ``(let (name
    value …) body)`` and ``(lambda (parameter …) body)`` in this form; types made of names and lists; no
    variable ``x0``, ``x1`` … that nothing binds. Whether functions exist and types agree is not asked.

    Args:
        text: Any text, such as the raw output of a model. Never raises, however long or deep the text is.

    Returns:
        An error with ``.message`` and ``.position``, which quotes nothing of the text.
    """
    try:
        expression, starts = read_with_starts(text)
    except LispressError as error:
        return error
    fault = _find_fault(expression)
    return None if fault is None else LispressError(fault[1], starts[fault[0]])


def is_valid(text: str) -> bool:
    """Return whether a text is one well-formed program, in the sense of `first_error`."""
    return first_error(text) is None


def require_valid(expression: Expression) -> None:
    """Refuse an expression that is not well-formed in the sense of `first_error`.

    Raises:
        LispressError: It is not; the position counts in ``write(expression)``.
    """
    fault = _find_fault(expression)
    if fault is not None:
        _, starts = read_with_starts(write(expression))
        raise LispressError(fault[1], starts[fault[0]])


def _find_fault(expression: Expression) -> tuple[int, str] | None:
    """The first faulty node: its number in preorder and what is wrong with it."""
    todo: list[_Part] = [(_value, expression, frozenset())]
    number = -1
    while todo:
        check, node, bound = todo.pop()
        number += 1
        found = check(node, bound)
        if isinstance(found, str):
            return number, found
        todo += reversed(found)
    return None


def _value(node: Expression, bound: _Bound) -> str | list[_Part]:
    if isinstance(node, Symbol):
        if node.is_keyword:
            return _KEYWORD
        return "a variable that no let or lambda binds" if is_variable(node.name) and node.name not in bound else []
    if isinstance(node, List):
        return _call(node, bound)
    if isinstance(node, TypeAnnotation):
        return [(_type, node.type, bound), (_value, node.body, bound)]
    return [(_literal, node.body, bound)] if isinstance(node, ReaderLiteral) else []


def _call(node: List, bound: _Bound) -> str | list[_Part]:
    if not node.items:
        return "an empty list: a call needs a function name"
    head, *rest = node.items
    if isinstance(head, Symbol) and head.name in BINDERS:
        if len(rest) != 2:
            return f"{head.name} needs a list of names and exactly one body"
        names = rest[0].items if isinstance(rest[0], List) else ()
        if head.name == "let":
            return [(_any, head, bound), (_bindings, rest[0], bound), (_value, rest[1], bound | _names(names[::2]))]
        return [(_any, head, bound), (_parameters, rest[0], bound), (_value, rest[1], bound | _names(names))]
    found: list[_Part] = [(_head, head, bound)]
    is_keyword = False  # whether the item before is one
    for item in rest:
        is_keyword = not is_keyword and isinstance(item, Symbol) and item.is_keyword
        found.append((_any if is_keyword else _value, item, bound))
    return [*found[:-1], (_lone_keyword, rest[-1], bound)] if is_keyword else found


def _names(binders: Iterable[Expression]) -> _Bound:
    """The names that binders bind, of those that are well-formed."""
    bodies = (binder.body if isinstance(binder, TypeAnnotation) else binder for binder in binders)
    return frozenset(body.name for body in bodies if isinstance(body, Symbol))


def _any(node: Expression, bound: _Bound) -> list[_Part]:
    return []


def _lone_keyword(node: Expression, bound: _Bound) -> str:
    return "a keyword without a value"


def _head(node: Expression, bound: _Bound) -> str | list[_Part]:
    if isinstance(node, TypeAnnotation):
        return [(_type_arguments, node.type, bound), (_function, node.body, bound)]
    return _function(node, bound, "the head of a call must be a function name")


def _function(
    node: Expression,
    bound: _Bound,
    fault: str = "type arguments at the head of a call must stand before a function name",
) -> str | list[_Part]:
    if not isinstance(node, Symbol):
        return fault
    return "a variable at the head of a call" if node.name in bound or is_variable(node.name) else []


def _name(node: Expression, bound: _Bound, fault: str = _NAME) -> str | list[_Part]:
    if not isinstance(node, Symbol):
        return fault
    return _KEYWORD if node.is_keyword else []


def _bindings(node: Expression, bound: _Bound) -> str | list[_Part]:
    if not isinstance(node, List) or not node.items or len(node.items) % 2:
        return "let needs a list of pairs, a name and a value each"
    found: list[_Part] = []
    for name, value in zip(node.items[::2], node.items[1::2], strict=True):  # a name is bound after its value
        found += [(_name, name, bound), (_value, value, bound)]
        bound = bound | _names([name])
    return found


def _parameters(node: Expression, bound: _Bound) -> str | list[_Part]:
    if not isinstance(node, List) or not node.items:
        return "lambda needs a list of parameters"
    return [(_parameter, item, bound) for item in node.items]


def _parameter(node: Expression, bound: _Bound) -> str | list[_Part]:
    if isinstance(node, TypeAnnotation):
        return [(_type, node.type, bound), (_name, node.body, bound)]
    return _name(node, bound, "a parameter of a lambda must be a name, with or without a type")


def _type(node: Expression, bound: _Bound) -> str | list[_Part]:
    if isinstance(node, List) and node.items:
        return [(_name, node.items[0], bound), *((_type, item, bound) for item in node.items[1:])]
    return _name(node, bound, "a type must be a name or a list that starts with one")


def _type_arguments(node: Expression, bound: _Bound) -> str | list[_Part]:
    if not isinstance(node, List) or not node.items:
        return "the type arguments of a function must be a list of types"
    return [(_type, item, bound) for item in node.items]


def _literal(node: Expression, bound: _Bound) -> str | list[_Part]:
    if not isinstance(node, List) or len(node.items) < 2:
        return "a # literal must be a list of a type and a value"
    return [(_name, node.items[0], bound), *((_value, item, bound) for item in node.items[1:])]
