"""Is a text well-formed Lispress, and if not, where does it first go wrong?"""

from __future__ import annotations

from enum import Enum, auto

from doppel.lispress.error import LispressError
from doppel.lispress.expression import Expression, List, ReaderLiteral, Symbol, TypeAnnotation, is_variable
from doppel.lispress.reader import read_with_starts
from doppel.lispress.writer import write


class _Role(Enum):
    """What a node has to be at its place in the tree."""

    VALUE = auto()
    HEAD = auto()
    FUNCTION = auto()
    NAME = auto()
    BINDINGS = auto()
    PARAMETERS = auto()
    PARAMETER = auto()
    TYPE = auto()
    TYPE_ARGUMENTS = auto()
    LITERAL = auto()
    ANYTHING = auto()


_Bound = frozenset[str]
_Part = tuple[Expression, "_Role | str", _Bound]
"""A node, its role (or, as a text, why it is wrong at this place), and the variables bound there."""


def first_error(text: str) -> LispressError | None:
    """The first place where a text stops being a well-formed program, or None.

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
    """Whether a text is one well-formed program, in the sense of `first_error`."""
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
    todo: list[_Part] = [(expression, _Role.VALUE, frozenset())]
    number = -1
    while todo:
        node, role, bound = todo.pop()
        number += 1
        if isinstance(role, str):
            return number, role
        verdict = _inspect(node, role, bound)
        if isinstance(verdict, str):
            return number, verdict
        todo.extend(reversed(verdict))
    return None


def _inspect(node: Expression, role: _Role, bound: _Bound) -> str | list[_Part]:
    """What is wrong with a node itself, or else its parts and the roles that they have to play."""
    if isinstance(node, List):
        return _inspect_list(node, role, bound)
    if isinstance(node, TypeAnnotation):
        if role is _Role.VALUE:
            return [(node.type, _Role.TYPE, bound), (node.body, _Role.VALUE, bound)]
        if role is _Role.HEAD:
            return [(node.type, _Role.TYPE_ARGUMENTS, bound), (node.body, _Role.FUNCTION, bound)]
        if role is _Role.PARAMETER:
            return [(node.type, _Role.TYPE, bound), (node.body, _Role.NAME, bound)]
        return _MISPLACED[role]
    if isinstance(node, ReaderLiteral):
        return [(node.body, _Role.LITERAL, bound)] if role is _Role.VALUE else _MISPLACED[role]
    if isinstance(node, Symbol):
        return _inspect_symbol(node, role, bound)
    return [] if role in (_Role.VALUE, _Role.ANYTHING) else _MISPLACED[role]


def _inspect_symbol(node: Symbol, role: _Role, bound: _Bound) -> str | list[_Part]:
    if role in (_Role.HEAD, _Role.FUNCTION):
        taken = node.name in bound or is_variable(node.name)
        return "a variable at the head of a call" if taken else []
    if role in (_Role.BINDINGS, _Role.PARAMETERS, _Role.TYPE_ARGUMENTS, _Role.LITERAL):
        return _MISPLACED[role]
    if role is not _Role.ANYTHING and node.is_keyword:
        return "a keyword where a value, a name or a type is expected"
    if role is _Role.VALUE and node.name not in bound and is_variable(node.name):
        return "a variable that no let or lambda binds"
    return []


def _inspect_list(node: List, role: _Role, bound: _Bound) -> str | list[_Part]:
    items = node.items
    if role is _Role.VALUE:
        return _inspect_call(items, bound)
    if role is _Role.TYPE and items:
        return [(items[0], _Role.NAME, bound), *((item, _Role.TYPE, bound) for item in items[1:])]
    if role is _Role.TYPE_ARGUMENTS and items:
        return [(item, _Role.TYPE, bound) for item in items]
    if role is _Role.PARAMETERS and items:
        return [(item, _Role.PARAMETER, bound) for item in items]
    if role is _Role.LITERAL and len(items) > 1:
        return [(items[0], _Role.NAME, bound), *((item, _Role.VALUE, bound) for item in items[1:])]
    if role is _Role.BINDINGS and items and len(items) % 2 == 0:
        parts: list[_Part] = []
        for name, value in zip(items[::2], items[1::2], strict=True):
            parts += ((name, _Role.NAME, bound), (value, _Role.VALUE, bound))
            bound |= _names(name)
        return parts
    return _MISPLACED[role]


def _inspect_call(items: tuple[Expression, ...], bound: _Bound) -> str | list[_Part]:
    if not items:
        return "an empty list: a call needs a function name"
    head = items[0]
    if isinstance(head, Symbol) and head.name in ("let", "lambda"):
        if len(items) != 3:
            return f"{head.name} needs a list of names and exactly one body"
        names = items[1].items if isinstance(items[1], List) else ()
        role = _Role.PARAMETERS
        if head.name == "let":
            role, names = _Role.BINDINGS, names[::2]
        inside = bound.union(*map(_names, names))
        return [(head, _Role.ANYTHING, bound), (items[1], role, bound), (items[2], _Role.VALUE, inside)]
    parts: list[_Part] = [(head, _Role.HEAD, bound)]
    after_keyword = False
    for position, item in enumerate(items[1:], start=1):
        if isinstance(item, Symbol) and item.is_keyword and not after_keyword:
            last = position + 1 == len(items)
            parts.append((item, "a keyword without a value" if last else _Role.ANYTHING, bound))
            after_keyword = True
        else:
            parts.append((item, _Role.VALUE, bound))
            after_keyword = False
    return parts


def _names(binder: Expression) -> _Bound:
    """The variable that one binding or parameter introduces."""
    if isinstance(binder, TypeAnnotation):
        binder = binder.body
    return frozenset((binder.name,)) if isinstance(binder, Symbol) else frozenset()


_MISPLACED = {
    _Role.HEAD: "the head of a call must be a function name",
    _Role.FUNCTION: "type arguments at the head of a call must stand before a function name",
    _Role.NAME: "a name is expected here",
    _Role.BINDINGS: "let needs a list of pairs, a name and a value each",
    _Role.PARAMETERS: "lambda needs a list of parameters",
    _Role.PARAMETER: "a parameter of a lambda must be a name, with or without a type",
    _Role.TYPE: "a type must be a name or a list that starts with one",
    _Role.TYPE_ARGUMENTS: "the type arguments of a function must be a list of types",
    _Role.LITERAL: "a # literal must be a list of a type and a value",
}
"""What is wrong with a node of the wrong kind, by role."""
