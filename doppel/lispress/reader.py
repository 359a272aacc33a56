"""From text to expression, in one pass with a stack of its own (no recursion)."""

from __future__ import annotations

import re
from functools import lru_cache

from doppel.lispress.expression import (
    STRING_BODY_PATTERN,
    SYMBOL_PATTERN,
    Expression,
    LispressError,
    List,
    Number,
    ReaderLiteral,
    String,
    Symbol,
    TypeAnnotation,
    is_number,
)

MAX_DEPTH = 200
"""Deepest nesting that is read. Real trees stay below 60; runaway model output does not."""

_TOKEN = re.compile(rf'([()^#])|"({STRING_BODY_PATTERN})"|({SYMBOL_PATTERN})|(\S)', re.DOTALL)
_MARK, _STRING, _ATOM, _BAD = 1, 2, 3, 4


def read(text: str) -> Expression:
    r"""Read exactly one expression.

    Reading asks for balanced brackets, closed strings and complete ``^`` and ``#`` forms; whether calls and
    ``let`` make sense is the question of `doppel.lispress.is_valid`. Blanks between tokens carry no meaning,
    so ``write(read(text)) == text`` for text on one line with single blanks, as the corpora are published.

    Raises:
        LispressError: The text is no single expression, or nests deeper than `MAX_DEPTH`.
    """
    return read_with_starts(text)[0]


def read_with_starts(text: str) -> tuple[Expression, list[int]]:
    """Read one expression as `read` does, and the character offset of each of its nodes.

    They are in preorder: a node, then its parts from left to right; those of ``^type body`` are the type and the body.
    """
    # An open form is its mark, the parts read so far, and its offset.
    marks: list[str] = []
    parts: list[list[Expression]] = []
    offsets: list[int] = []
    starts: list[int] = []
    root: Expression | None = None

    for token in _TOKEN.finditer(text):
        start = token.start()
        if root is not None:
            raise LispressError("text after the end of the expression", start)
        kind = token.lastindex
        node: Expression
        if kind == _MARK:
            mark = token[0]
            if mark != ")":
                if len(marks) == MAX_DEPTH:
                    raise LispressError(f"nested deeper than {MAX_DEPTH} levels", start)
                marks.append(mark)
                parts.append([])
                offsets.append(start)
                starts.append(start)
                continue
            if not marks:
                raise LispressError("a closing bracket without an opening one", start)
            if marks[-1] != "(":
                raise LispressError(_lacking(marks[-1], offsets[-1]), start)
            node = List(tuple(parts.pop()))
            marks.pop()
            offsets.pop()
        else:
            starts.append(start)
            if kind == _ATOM:
                node = _atom(token[_ATOM])
            elif kind == _STRING:
                node = _string(token[_STRING])
            elif token[_BAD] == '"':
                raise LispressError("a string that is never closed", start)
            else:
                raise LispressError("a backslash with nothing after it", start)

        # A finished node may finish the ^ and # forms that wait for it.
        while marks:
            siblings = parts[-1]
            siblings.append(node)
            mark = marks[-1]
            if mark == "(" or (mark == "^" and len(siblings) == 1):
                break
            node = ReaderLiteral(node) if mark == "#" else TypeAnnotation(siblings[0], node)
            marks.pop()
            parts.pop()
            offsets.pop()
        else:
            root = node

    if marks:
        raise LispressError(_lacking(marks[-1], offsets[-1]), len(text))
    if root is None:
        raise LispressError("no expression: the text is empty", 0)
    return root, starts


def _lacking(mark: str, offset: int) -> str:
    """What the open form that starts with `mark` at `offset` still needs."""
    if mark == "(":
        return f"the bracket opened at character {offset} is never closed"
    if mark == "^":
        return f"the ^ at character {offset} needs a type and an expression after it"
    return f"the # at character {offset} needs a list (Type value) after it"


@lru_cache(maxsize=1 << 14)
def _atom(spelling: str) -> Symbol | Number:
    return Number(spelling) if is_number(spelling) else Symbol(spelling)


@lru_cache(maxsize=1 << 14)
def _string(spelling: str) -> String:
    return String(spelling)
