"""The grammar of Lispress in one table: what each form is made of, what may come next in it, and what it becomes.

`doppel.lispress.validity` asks it about whole expressions; `doppel.lispress.lark` says the same to a decoder.
"""

from __future__ import annotations

from enum import IntEnum, auto
from functools import cache, lru_cache
from typing import NamedTuple

from doppel.lispress.expression import is_keyword, is_number, is_variable


class Role(IntEnum):
    """What an item has to be at its place."""

    __hash__ = int.__hash__  # that of Enum takes half the time of a check

    VALUE = auto()
    HEAD = auto()
    FUNCTION = auto()
    NAME = auto()
    BINDER = auto()
    BINDINGS = auto()
    PARAMETERS = auto()
    PARAMETER = auto()
    TYPE = auto()
    TYPE_ARGUMENTS = auto()
    LITERAL = auto()


class Kind(IntEnum):
    """Which form is open: a program, a list, or (the last four) a mark without brackets."""

    __hash__ = int.__hash__

    ROOT = auto()
    CALL = auto()
    LET = auto()
    LAMBDA = auto()
    BINDINGS = auto()
    PARAMETERS = auto()
    TYPE = auto()
    TYPE_ARGUMENTS = auto()
    LITERAL = auto()
    ASCRIPTION = auto()
    TYPED_HEAD = auto()
    TYPED_PARAMETER = auto()
    READER = auto()


class Form(NamedTuple):
    """An open form, without the forms around it.

    Attributes:
        kind: Which.
        stage: How far it is: a place in the roles of its kind.
        bound: Variables that its items may use.
        names: Variables that it introduces (bindings, parameters).
        name: The function or the variable of a typed head or parameter.
    """

    kind: Kind
    stage: int = 0
    bound: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    name: str = ""


Info = str | frozenset[str] | None
"""What a finished item tells the form around it: an atom's text (with a ``^`` for a typed head), names, or nothing."""

BINDERS = ("let", "lambda")
"""Heads of the forms that bind variables."""


class _Items(NamedTuple):
    """What a form is made of.

    Attributes:
        roles: Roles of its items at its first stages.
        again: The stage after the last of these; None where no item may follow.
        closes_at: The stage at which a bracket may close it; None for a form without brackets.
    """

    roles: tuple[Role, ...]
    again: int | None = None
    closes_at: int | None = None


_ITEMS = {
    Kind.ROOT: _Items((Role.VALUE,)),
    Kind.CALL: _Items((Role.HEAD, Role.VALUE), again=1, closes_at=1),
    Kind.LET: _Items((Role.HEAD, Role.BINDINGS, Role.VALUE), closes_at=3),
    Kind.LAMBDA: _Items((Role.HEAD, Role.PARAMETERS, Role.VALUE), closes_at=3),
    Kind.BINDINGS: _Items((Role.BINDER, Role.VALUE, Role.BINDER), again=1, closes_at=2),
    Kind.PARAMETERS: _Items((Role.PARAMETER, Role.PARAMETER), again=1, closes_at=1),
    Kind.TYPE: _Items((Role.NAME, Role.TYPE), again=1, closes_at=1),
    Kind.TYPE_ARGUMENTS: _Items((Role.TYPE, Role.TYPE), again=1, closes_at=1),
    Kind.LITERAL: _Items((Role.NAME, Role.VALUE, Role.VALUE), again=2, closes_at=2),
    Kind.ASCRIPTION: _Items((Role.TYPE, Role.VALUE)),
    Kind.TYPED_HEAD: _Items((Role.TYPE_ARGUMENTS, Role.FUNCTION)),
    Kind.TYPED_PARAMETER: _Items((Role.TYPE, Role.BINDER)),
    Kind.READER: _Items((Role.LITERAL,)),
}
_AFTER_KEYWORD = 2  # stage of a call that asks for the value of a keyword
_LISTS: dict[Role | None, Kind] = {
    Role.VALUE: Kind.CALL,
    Role.BINDINGS: Kind.BINDINGS,
    Role.PARAMETERS: Kind.PARAMETERS,
    Role.TYPE: Kind.TYPE,
    Role.TYPE_ARGUMENTS: Kind.TYPE_ARGUMENTS,
    Role.LITERAL: Kind.LITERAL,
}
_HATS: dict[Role | None, Kind] = {
    Role.VALUE: Kind.ASCRIPTION,
    Role.HEAD: Kind.TYPED_HEAD,
    Role.PARAMETER: Kind.TYPED_PARAMETER,
}
OPENERS: dict[str, dict[Role | None, Kind]] = {"(": _LISTS, "^": _HATS, "#": {Role.VALUE: Kind.READER}}
"""The form that a mark opens, by the role of the item that it begins."""

_MUST_BE_LISTS = (Role.BINDINGS, Role.PARAMETERS, Role.TYPE_ARGUMENTS, Role.LITERAL)
MISPLACED: dict[Role | None, str] = {
    Role.HEAD: "the head of a call must be a function name",
    Role.FUNCTION: "type arguments at the head of a call must stand before a function name",
    Role.NAME: "a name is expected here",
    Role.BINDER: "a name is expected here",
    Role.BINDINGS: "let needs a list of pairs, a name and a value each",
    Role.PARAMETERS: "lambda needs a list of parameters",
    Role.PARAMETER: "a parameter of a lambda must be a name, with or without a type",
    Role.TYPE: "a type must be a name or a list that starts with one",
    Role.TYPE_ARGUMENTS: "the type arguments of a function must be a list of types",
    Role.LITERAL: "a # literal must be a list of a type and a value",
}
"""What is wrong with an item of the wrong kind, by the role that it ought to play."""


def role_of(form: Form) -> Role | None:
    """What the next item has to be; None where there may be none."""
    roles, again, _ = _ITEMS[form.kind]
    stage = form.stage
    return roles[stage] if stage < len(roles) else None if again is None else roles[-1]


@lru_cache(1 << 14)
def after_item(form: Form, info: Info) -> Form:
    """The form after one more item in it.

    Args:
        form: The form, which has room for the item.
        info: What the item tells: the text of an atom, or the `outcome` of a form.
    """
    kind, stage = form.kind, form.stage
    if kind is Kind.CALL and isinstance(info, str):
        if stage == 0 and info in BINDERS:
            return Form(Kind.LET if info == "let" else Kind.LAMBDA, 1, form.bound)
        if stage == 1 and is_keyword(info):
            return form._replace(stage=_AFTER_KEYWORD)
    after = _next_stage(kind, stage)
    if kind in (Kind.LET, Kind.LAMBDA):
        return form._replace(stage=after, bound=form.bound | info if isinstance(info, frozenset) else form.bound)
    if kind is Kind.BINDINGS and stage == 1:
        # A name is bound after its value; the form keeps it meanwhile.
        return form._replace(stage=after, bound=form.bound | {form.name}, names=form.names | {form.name}, name="")
    if kind in (Kind.BINDINGS, Kind.PARAMETERS) or kind in (Kind.TYPED_HEAD, Kind.TYPED_PARAMETER) and stage == 1:
        assert isinstance(info, str)
        if kind is Kind.PARAMETERS:
            return form._replace(stage=after, names=form.names | {info})
        return form._replace(stage=after, name=info)
    return form if after == stage else form._replace(stage=after)


def atom_fault(form: Form, text: str) -> str | None:
    """What is wrong with a symbol or number as the next item of a form; None if nothing."""
    role = role_of(form)
    assert role is not None
    if role in _MUST_BE_LISTS:
        return MISPLACED[role]
    if role in (Role.HEAD, Role.FUNCTION):
        if role is Role.HEAD and text in BINDERS:
            return None  # even where a variable has this name
        if text in form.bound or is_variable(text):
            return "a variable at the head of a call"
    elif is_keyword(text):
        is_welcome = role is Role.VALUE and form.kind is Kind.CALL and form.stage == 1
        return None if is_welcome else "a keyword where a value, a name or a type is expected"
    elif role is Role.VALUE:
        is_unbound = is_variable(text) and text not in form.bound
        return "a variable that no let or lambda binds" if is_unbound else None
    return MISPLACED[role] if is_number(text) else None


@cache
def holds(kind: Kind, num_items: int) -> bool:
    """Whether a list of a kind may have so many items."""
    stage = 0
    for _ in range(num_items):
        stage = _next_stage(kind, stage)
    return stage == _ITEMS[kind].closes_at


def is_closable(form: Form) -> bool:
    """Whether a bracket may close the form now."""
    return _ITEMS[form.kind].closes_at == form.stage


def outcome(form: Form) -> Info:
    """What the form, complete, tells the form around it."""
    if form.kind in (Kind.BINDINGS, Kind.PARAMETERS):
        return form.names
    if form.kind is Kind.TYPED_HEAD:
        return "^" + form.name
    return form.name if form.kind is Kind.TYPED_PARAMETER else None


def _next_stage(kind: Kind, stage: int) -> int:
    """The stage after one more item."""
    roles, again, _ = _ITEMS[kind]
    return stage + 1 if again is None or stage + 1 < len(roles) else again
