"""The open forms of a program that is being read: what may come next in each, and what each becomes."""

from __future__ import annotations

from enum import IntEnum, auto
from typing import NamedTuple


class Role(IntEnum):
    """What an item has to be at its place; the same places as in `doppel.lispress.validity`."""

    PROGRAM = auto()
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
    """Which form is open; the last four need no bracket to close."""

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


class Signature(NamedTuple):
    """What a function or a type takes.

    Attributes:
        min_args: Arguments at least.
        max_args: Arguments at most; None for any number.
        keywords: Names of the arguments, each with its colon.
    """

    min_args: int
    max_args: int | None
    keywords: frozenset[str]


class Form(NamedTuple):
    """An open form, without the forms around it.

    Attributes:
        kind: Which.
        stage: How far it is; see `role_of`.
        bound: Variables that its items may use.
        names: Variables that it introduces (bindings, parameters), or keywords that it has used (calls).
        given: Arguments so far, where a signature counts them.
        signature: What its function or type takes; None for anything.
        name: The function or the variable of a typed head or parameter.
    """

    kind: Kind
    stage: int = 0
    bound: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    given: int = 0
    signature: Signature | None = None
    name: str = ""


Info = str | frozenset[str] | None
"""What a finished item tells the form around it: an atom's text (with a ``^`` for a typed head), names, or nothing."""

PROGRAM_STAGE = -1
"""Stage of a root that asks for a call."""

_ROLES: dict[tuple[Kind, int], Role] = {
    (Kind.ROOT, PROGRAM_STAGE): Role.PROGRAM,
    (Kind.ROOT, 0): Role.VALUE,
    (Kind.CALL, 0): Role.HEAD,
    (Kind.CALL, 1): Role.VALUE,
    (Kind.CALL, 2): Role.VALUE,  # after a keyword
    (Kind.LET, 1): Role.BINDINGS,
    (Kind.LET, 2): Role.VALUE,
    (Kind.LAMBDA, 1): Role.PARAMETERS,
    (Kind.LAMBDA, 2): Role.VALUE,
    (Kind.BINDINGS, 0): Role.BINDER,
    (Kind.BINDINGS, 1): Role.VALUE,
    (Kind.BINDINGS, 2): Role.BINDER,
    (Kind.PARAMETERS, 0): Role.PARAMETER,
    (Kind.PARAMETERS, 1): Role.PARAMETER,
    (Kind.TYPE, 0): Role.NAME,
    (Kind.TYPE, 1): Role.TYPE,
    (Kind.TYPE_ARGUMENTS, 0): Role.TYPE,
    (Kind.TYPE_ARGUMENTS, 1): Role.TYPE,
    (Kind.LITERAL, 0): Role.NAME,
    (Kind.LITERAL, 1): Role.VALUE,
    (Kind.LITERAL, 2): Role.VALUE,
    (Kind.ASCRIPTION, 0): Role.TYPE,
    (Kind.ASCRIPTION, 1): Role.VALUE,
    (Kind.TYPED_HEAD, 0): Role.TYPE_ARGUMENTS,
    (Kind.TYPED_HEAD, 1): Role.FUNCTION,
    (Kind.TYPED_PARAMETER, 0): Role.TYPE,
    (Kind.TYPED_PARAMETER, 1): Role.BINDER,
    (Kind.READER, 0): Role.LITERAL,
}
_CLOSES_AT = {
    Kind.CALL: 1,
    Kind.LET: 3,
    Kind.LAMBDA: 3,
    Kind.BINDINGS: 2,
    Kind.PARAMETERS: 1,
    Kind.TYPE: 1,
    Kind.TYPE_ARGUMENTS: 1,
    Kind.LITERAL: 2,
}
_LISTS = {
    Role.PROGRAM: Kind.CALL,
    Role.VALUE: Kind.CALL,
    Role.BINDINGS: Kind.BINDINGS,
    Role.PARAMETERS: Kind.PARAMETERS,
    Role.TYPE: Kind.TYPE,
    Role.TYPE_ARGUMENTS: Kind.TYPE_ARGUMENTS,
    Role.LITERAL: Kind.LITERAL,
}
_HATS = {Role.VALUE: Kind.ASCRIPTION, Role.HEAD: Kind.TYPED_HEAD, Role.PARAMETER: Kind.TYPED_PARAMETER}
_HASHES = {Role.VALUE: Kind.READER}
OPENERS = {"(": _LISTS, "^": _HATS, "#": _HASHES}
"""The form that a mark opens, by the role of the item that it begins."""

_MUST_BE_LISTS = (Role.PROGRAM, Role.BINDINGS, Role.PARAMETERS, Role.TYPE_ARGUMENTS, Role.LITERAL)


def role_of(form: Form) -> Role | None:
    """What the next item has to be; None where there may be none."""
    if form.signature is not None and form.kind in (Kind.CALL, Kind.TYPE) and form.stage == 1:
        most = form.signature.max_args
        if most is not None and form.given >= most:
            return None
    return _ROLES.get((form.kind, form.stage))


def is_closable(form: Form) -> bool:
    """Whether a bracket may close the form now."""
    enough = form.signature is None or form.given >= form.signature.min_args
    return _CLOSES_AT.get(form.kind) == form.stage and enough


def is_finished(form: Form) -> bool:
    """Whether the form is complete without a bracket."""
    return form.kind >= Kind.ASCRIPTION and role_of(form) is None


def levels_to_come(form: Form) -> int:
    """How many levels deeper the next item must go at least."""
    return int(role_of(form) in _MUST_BE_LISTS)


def outcome(form: Form) -> Info:
    """What the form, complete, tells the form around it."""
    if form.kind in (Kind.BINDINGS, Kind.PARAMETERS):
        return form.names
    if form.kind is Kind.TYPED_HEAD:
        return "^" + form.name
    return form.name if form.kind is Kind.TYPED_PARAMETER else None
