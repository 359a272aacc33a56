"""Which names an incremental recogniser lets through: any, or those of a public API table."""

from __future__ import annotations

import re
from collections.abc import Iterable

from doppel.lispress.expression import is_keyword, is_number, is_variable
from doppel.lispress.forms import BINDERS, Form, Kind, Role, Signature, atom_fault, role_of

ORDINARY = "("
"""Stands for every symbol whose spelling no longer matters; no symbol can be spelled like this."""

_MAY_BECOME_VARIABLE = re.compile(r"x[0-9]*").fullmatch
_MAY_BECOME_NUMBER = re.compile(r"-?(?:[0-9]+(?:L|\.|(?:\.[0-9]+)?(?:[eE][+-]?[0-9]*)?)?)?").fullmatch
_NAMING = (Role.BINDER, Role.PARAMETER)
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def is_escaping(text: str) -> bool:
    """Whether an atom ends in a backslash that the next character belongs to."""
    return (len(text) - len(text.rstrip("\\"))) % 2 == 1


class Names:
    """The atoms that may stand at a place: here all that the notation allows, as in `doppel.lispress.first_error`.

    Attributes:
        is_table: Whether names come from a table; ``#`` literals, of older trees, are then left out.
        characters: Characters with which every begun program can be ended.
    """

    is_table = False
    characters = frozenset(' ()"0' + _LETTERS)

    def suffixes(self, form: Form, text: str) -> tuple[str, ...]:
        """Endings, the shortest of each kind, that make of `text` an atom that may stand next in `form`.

        The empty one is among them if and only if the atom may end as it is. None: no such atom begins with `text`.
        """
        if is_escaping(text):
            return ("a",) if atom_fault(form, text + "a") is None else ()
        now = ("",) if text and atom_fault(form, text) is None else ()
        return now + tuple(c for c in _LETTERS[: len(form.bound) + 1] if atom_fault(form, text + c) is None)[:1]

    def shorten(self, form: Form, text: str) -> str:
        """A text that stands for `text` and all others that allow the same.

        The names of variables are kept, and what may still become special.
        """
        role = role_of(form)
        if role in _NAMING or text == ":":
            return text
        keep = False
        if role in (Role.HEAD, Role.FUNCTION):
            keep = any(name.startswith(text) for name in (*BINDERS, *form.bound))
        if role in (Role.HEAD, Role.FUNCTION, Role.VALUE):
            keep = keep or _MAY_BECOME_VARIABLE(text) is not None
        if keep or (role is not Role.VALUE and _MAY_BECOME_NUMBER(text)):
            return text
        start = ":" if role is Role.VALUE and is_keyword(text) else ""
        return start + ORDINARY + ("\\" if is_escaping(text) else "")

    def signature(self, function: str) -> Signature | None:
        """What the function takes, or None if anything."""
        return None

    def type_signature(self, name: str) -> Signature | None:
        """Number of arguments of a type, or None if any."""
        return None


def _endings(words: Iterable[tuple[str, int]]) -> dict[str, tuple[str, ...]]:
    """For every beginning of a word, the shortest ways to end it, one for each number of needed arguments."""
    best: dict[str, dict[int, str]] = {}
    for word, needed in words:
        for end in range(len(word) + 1):
            of_kind = best.setdefault(word[:end], {})
            if needed not in of_kind or len(word) - end < len(of_kind[needed]):
                of_kind[needed] = word[end:]
    return {beginning: tuple(of_kind.values()) for beginning, of_kind in best.items()}


class ApiNames(Names):
    """The names of a public API, besides what the notation itself brings.

    The notation brings `let`, `lambda`, `do` with any number of statements, `true`, `false`, numbers, strings and the
    variables `x0` … `x99`. And for every field `T.f` of the API (a function of one argument named `obj`), `T.f_?` is
    the constraint on that field.

    A function takes at most as many arguments as its longest overload, at least one unless some overload takes none,
    and each keyword once; which of its arguments may be left out, and whether types agree, is not asked.

    Args:
        functions: Name and names of the arguments of each overload.
        types: Name and number of arguments of each type.
    """

    is_table = True

    def __init__(self, functions: Iterable[tuple[str, tuple[str, ...]]], types: Iterable[tuple[str, int]]) -> None:
        overloads: dict[str, list[tuple[str, ...]]] = {}
        for name, arguments in functions:
            overloads.setdefault(name, []).append(arguments)
            if "." in name and arguments == ("obj",):
                overloads.setdefault(f"{name}_?", []).append(("constraint",))
        self._signatures = {name: _signature(of_name) for name, of_name in overloads.items()}
        self._signatures["do"] = Signature(1, None, frozenset())
        self._types = {name: Signature(number, number, frozenset()) for name, number in types}
        called = [(name, s.min_args) for name, s in self._signatures.items()]
        self._endings = {
            Role.FUNCTION: _endings(called),
            Role.HEAD: _endings([*called, ("let", -1), ("lambda", -2)]),
            Role.TYPE: _endings((name, 0) for name, s in self._types.items() if not s.min_args),
            Role.NAME: _endings((name, s.min_args) for name, s in self._types.items() if s.min_args),
        }
        keywords = frozenset().union(*(s.keywords for s in self._signatures.values()))
        spelled = "".join([*self._signatures, *self._types, *keywords])
        self.characters = frozenset(spelled + ' ()"^truefalsletambdx-.eL0123456789')

    @property
    def functions(self) -> frozenset[str]:
        """Every function that may head a call."""
        return frozenset(self._signatures)

    def suffixes(self, form: Form, text: str) -> tuple[str, ...]:
        role = role_of(form)
        if role in self._endings:
            return self._endings[role].get(text, ())
        if role in _NAMING:
            ends = ("",) if is_variable(text) else ("0",) if text == "x" else () if text else ("x0",)
            return ends if len(text) <= 3 else ()
        if role is not Role.VALUE:
            return ()
        words = ["true", "false", *form.bound]
        if form.kind is Kind.CALL and form.stage == 1 and form.signature is not None:
            words += sorted(form.signature.keywords - form.names)
        found = {word[len(text) :] for word in words if word.startswith(text)}
        found |= {end for end in ("", "0") if is_number(text + end)}
        return tuple(sorted(found, key=len))

    def shorten(self, form: Form, text: str) -> str:  # every letter counts
        return text

    def signature(self, function: str) -> Signature | None:
        return self._signatures[function]

    def type_signature(self, name: str) -> Signature | None:
        return self._types[name]


def _signature(overloads: list[tuple[str, ...]]) -> Signature:
    keywords = frozenset(f":{name}" for arguments in overloads for name in arguments)
    return Signature(min(1, *map(len, overloads)), max(map(len, overloads)), keywords)
