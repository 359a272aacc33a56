"""Is a text well-formed Lispress, and if not, where does it first go wrong?"""

from __future__ import annotations

from collections.abc import Iterator

from doppel.lispress import forms
from doppel.lispress.expression import (
    Expression,
    LispressError,
    List,
    Number,
    String,
    Symbol,
    TypeAnnotation,
    parts,
    write,
)
from doppel.lispress.forms import BINDERS, MISPLACED, OPENERS, Form, Info, Kind, Role
from doppel.lispress.reader import read_with_starts


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
    open_forms = [Form(Kind.ROOT)]
    rests: list[Iterator[Expression]] = [iter((expression,))]
    number = -1
    while True:
        node = next(rests[-1], None)
        info: Info = None
        fault: str | None = None
        if node is None:
            form = open_forms.pop()
            rests.pop()
            if not open_forms:
                return None
            if form.kind is Kind.CALL and not forms.is_closable(form):
                return number, "a keyword without a value"
            info = forms.outcome(form)
        else:
            number += 1
            if isinstance(node, Symbol | Number):
                info = node.name if isinstance(node, Symbol) else node.spelling
                fault = forms.atom_fault(open_forms[-1], info)
            elif isinstance(node, String):
                role = forms.role_of(open_forms[-1])
                fault = None if role is Role.VALUE else MISPLACED[role]
            else:
                fault = _open(node, open_forms, rests)
                if fault is None:
                    continue
        if fault is not None:
            return number, fault
        open_forms[-1] = forms.after_item(open_forms[-1], info)


def _open(node: Expression, open_forms: list[Form], rests: list[Iterator[Expression]]) -> str | None:
    """Open the form of a list, a ``^`` or a ``#``; or say what is wrong with it."""
    mark = "(" if isinstance(node, List) else "^" if isinstance(node, TypeAnnotation) else "#"
    items = parts(node)
    role = forms.role_of(open_forms[-1])
    kind = OPENERS[mark].get(role)
    if kind is None:
        return MISPLACED[role]
    if kind is Kind.CALL:
        if not items:
            return "an empty list: a call needs a function name"
        head = items[0]
        if isinstance(head, Symbol) and head.name in BINDERS and not forms.holds(Kind.LET, len(items)):
            return f"{head.name} needs a list of names and exactly one body"
    elif mark == "(" and not forms.holds(kind, len(items)):
        return MISPLACED[role]
    open_forms.append(Form(kind, bound=open_forms[-1].bound))
    rests.append(iter(items))
    return None
