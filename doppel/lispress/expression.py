"""The six kinds of node of a Lispress expression, and their text.

Every node is immutable and hashable. Atoms keep the spelling they were read with (``1.50`` stays ``1.50``), so that
writing an expression gives back its text.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

SYMBOL_PATTERN = r'(?:[^\s()"\\^#]|\\.)(?:[^\s()"\\]|\\.)*'
"""A symbol: blanks, brackets, quotes, backslashes need a backslash, and so do ``^`` and ``#`` in front."""

STRING_BODY_PATTERN = r'[^"\\]*(?:\\.[^"\\]*)*'
"""What may stand between the quotes of a string."""

NUMBER_PATTERN = r"-?[0-9]+(?:L|(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)"
"""A number: ``2L`` (long), ``23``, ``-3``, ``1.5``, ``1e-3``."""

_IS_SYMBOL = re.compile(SYMBOL_PATTERN, re.DOTALL).fullmatch
_IS_STRING_BODY = re.compile(STRING_BODY_PATTERN, re.DOTALL).fullmatch

is_number = re.compile(NUMBER_PATTERN).fullmatch
"""Whether a whole text is a number."""

is_variable = re.compile(r"x[0-9]+").fullmatch
"""Whether a whole text is a variable, which stands for nothing unless ``let`` or ``lambda`` binds it."""


class LispressError(ValueError):
    """A text or an expression is not well-formed Lispress.

    The message never quotes the tree, which may be private: it says what is wrong, the position says where.

    Attributes:
        message: What is wrong and what was expected, without the position.
        position: 0-based character offset of the error in the text.
    """

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message, position)
        self.message = message
        self.position = position

    def __str__(self) -> str:
        return f"{self.message} (at character {self.position})"


@dataclass(frozen=True, slots=True)
class Symbol:
    """A name: a function, a type, a variable, ``true``/``false``, or a keyword such as ``:output``.

    Attributes:
        name: The spelling, with the backslashes of escaped characters.

    Raises:
        LispressError: The name cannot be written as one symbol.
    """

    name: str

    def __post_init__(self) -> None:
        if not _IS_SYMBOL(self.name) or is_number(self.name):
            raise LispressError("not a symbol: blanks, brackets and quotes need a backslash", 0)

    @property
    def is_keyword(self) -> bool:
        """Whether it names an argument, as ``:output`` does."""
        return self.name.startswith(":") and len(self.name) > 1


@dataclass(frozen=True, slots=True)
class Number:
    """A number literal.

    Attributes:
        spelling: The digits as written, such as ``2L``, ``1.50`` or ``-3``.

    Raises:
        LispressError: The spelling is not a number.
    """

    spelling: str

    def __post_init__(self) -> None:
        if not is_number(self.spelling):
            raise LispressError("not a number: expected digits such as 2L, 1.5 or -3", 0)


@dataclass(frozen=True, slots=True)
class String:
    r"""A quoted string, possibly empty.

    Attributes:
        spelling: What stands between the quotes, escapes (``\"``, ``\\``, ``\n``) as written.

    Raises:
        LispressError: The spelling holds a quote without a backslash, or ends in a lone backslash.
    """

    spelling: str

    def __post_init__(self) -> None:
        if not _IS_STRING_BODY(self.spelling):
            raise LispressError("not the inside of a string: quotes and backslashes need a backslash", 0)

    @classmethod
    def of(cls, value: str) -> String:
        """Return the string literal that stands for `value`, with JSON's escapes."""
        return cls(json.dumps(value, ensure_ascii=False)[1:-1])

    @property
    def value(self) -> str:
        """The text that the literal stands for; a backslash that JSON does not know is dropped."""
        if "\\" not in self.spelling:
            return self.spelling
        try:
            return json.loads(f'"{self.spelling}"', strict=False)
        except json.JSONDecodeError:
            return re.sub(r"\\(.)", r"\1", self.spelling, flags=re.DOTALL)


@dataclass(frozen=True, slots=True)
class TypeAnnotation:
    """``^type body``: a type ascription, or the type arguments of a function when it heads a call.

    Attributes:
        type: ``T`` or ``(T …)``.
        body: The expression or the function name that carries the type.
    """

    type: Expression
    body: Expression


@dataclass(frozen=True, slots=True)
class ReaderLiteral:
    """``#(Type value)``: a typed literal of Lispress 1.0.

    Attributes:
        body: The list after the ``#``.
    """

    body: Expression


@dataclass(frozen=True, slots=True)
class List:
    """``(head item …)``: a call, or the inside of ``let``, ``lambda`` and types.

    Attributes:
        items: The elements, the head first.
    """

    items: tuple[Expression, ...]


Expression = Symbol | Number | String | TypeAnnotation | ReaderLiteral | List
"""Any node."""


def parts(node: Expression) -> tuple[Expression, ...]:
    """Return the nodes that a node is made of, from left to right; none for an atom."""
    if isinstance(node, List):
        return node.items
    if isinstance(node, TypeAnnotation):
        return node.type, node.body
    return (node.body,) if isinstance(node, ReaderLiteral) else ()


def write(expression: Expression) -> str:
    """Return the text of an expression: the inverse of `doppel.lispress.read`.

    ``read(write(e)) == e`` for every expression, however deep, and ``write(read(t)) == t`` for text with single blanks.
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


ANONYMOUS_STRING = String("STRING")
"""What every quoted string becomes."""


def anonymise(expression: Expression) -> Expression:
    """Return the expression with every quoted string replaced by ``"STRING"``.

    Names, places and titles of the user sit in quoted strings; functions, types and numbers stay.
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
