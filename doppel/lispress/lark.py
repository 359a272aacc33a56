"""The grammar of Lispress for a decoder: a context-free grammar in the syntax of Lark, as llguidance reads it.

It is what :mod:`doppel.lispress.validity` accepts, down to the blanks: what :func:`doppel.lispress.write` writes. A
rule has a parameter, the set of variables that are bound where it is used; with it the grammar is as strict as
:func:`doppel.lispress.first_error` about the variables, which are ``x0`` … ``x63`` here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from doppel.lispress.expression import NUMBER_PATTERN
from doppel.lispress.names import ApiNames, Signature

#: Variables that a tree may bind, as many as a parameter of a rule has bits.
NUM_VARIABLES = 64

_BODY = r'([^"\\\x00-\x1f]|\\[^\x00-\x1f])*'


def lark_grammar(names: ApiNames, spaced: bool) -> str:
    """Return the grammar of one tree that is a call, after a blank.

    Args:
        names: Functions, types and arguments that may occur.
        spaced: Whether a blank stands inside each quote.
    """
    blank = " " if spaced else ""
    has_types = bool(names.types)
    typed = ['types: type (" " type)*', 'annotated::_: "^" type " " value::_'] if has_types else []
    return "\n".join(
        [
            'start: " " call::0x0',
            f'STRING: /"{blank}{_BODY}{blank}"/',
            f"NUMBER: /{NUMBER_PATTERN.replace('?:', '')}/",
            *_names_of(names),
            'call::_: "(" (form::_ | "let (" bind::_ | "lambda (" parameter::_) ")"',
            *typed,
            *_binders("bind", '" " value::_', "bound"),
            'bound::_: " " bind::_ | ") " value::_',
            *_binders("parameter", "", "taken", lead='("^" type " ")? ' if has_types else ""),
            'taken::_: " " parameter::_ | ") " value::_',
            *(f"variable::_: {' | '.join(_used(i) for i in range(NUM_VARIABLES))}",),
        ]
    )


def _used(number: int) -> str:
    return f'"x{number}" %if bit_set({number})'


def _binders(name: str, after: str, then: str, lead: str = "") -> Iterator[str]:
    """A rule of something that binds one variable, and of what follows it."""
    ways = (f'{lead}"x{i}" {after} {then}::set_bit({i})' for i in range(NUM_VARIABLES))
    yield f"{name}::_: {' | '.join(ways)}"


def _names_of(names: ApiNames) -> Iterator[str]:
    """Calls, values and types of an API: functions that take the same are one rule."""
    plain = [name for name, num_arguments in names.types if not num_arguments]
    forms = sorted(f'"({name}" (" " type){{{number}}} ")"' for name, number in names.types if number)
    if plain:
        yield f"TYPE: {_one_of(plain)}"
    if names.types:
        yield f"type: {' | '.join([*(['TYPE'] if plain else []), *forms])}"
    head = '{0} | "^(" types ") " {0}' if names.types else "{0}"
    alike: dict[Signature, list[str]] = {}
    for name, signature in names.signatures.items():
        alike.setdefault(signature, []).append(name)
    calls = []
    for number, (signature, functions) in enumerate(alike.items()):
        yield f"FUNCTION_{number}: {_one_of(functions)}"
        argument = '" " value::_'
        if signature.keywords:
            yield f"KEYWORD_{number}: {_one_of(signature.keywords)}"
            argument += f' | " " KEYWORD_{number} " " value::_'
        times = f"{{{signature.min_args},{'' if signature.max_args is None else signature.max_args}}}"
        arguments = f"({argument}){times}" if signature.max_args != 0 else ""
        calls.append(f"({head.format(f'FUNCTION_{number}')}) {arguments}")
    yield f"form::_: {' | '.join(calls)}"
    yield f"CONSTANT: {_one_of(names.constants)}"
    values = ["call::_", "STRING", "NUMBER", "CONSTANT", "variable::_", *(["annotated::_"] if names.types else [])]
    if names.literals:
        yield f"LITERAL: {_one_of(names.literals)}"
        yield 'literal::_: "#(" LITERAL (" " value::_)+ ")"'
        values.append("literal::_")
    yield f"value::_: {' | '.join(values)}"


def _one_of(words: Iterable[str]) -> str:
    return "/" + "|".join(re.escape(word).replace("/", r"\/") for word in sorted(words)) + "/"
