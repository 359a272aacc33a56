"""The names of an API: its functions with what they take, its types and its constants."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Signature(NamedTuple):
    """What a function takes.

    Attributes:
        min_args: Arguments at least.
        max_args: Arguments at most; None for any number.
        keywords: Names of the arguments, each with its colon.
    """

    min_args: int
    max_args: int | None
    keywords: frozenset[str]


class ApiNames:
    """The names of an API, besides what the notation itself brings.

    The notation brings `let`, `lambda`, `do` with any number of statements, `true`, `false`, numbers, strings and
    variables. And for every field `T.f` of the API (a function of one argument named `obj`), `T.f_?` is the constraint
    on that field.

    A function takes at most as many arguments as its longest overload, and at least one unless some overload takes
    none; which of its arguments may be left out, and whether types agree, is not asked.

    Args:
        functions: Name and names of the arguments of each overload; ``""`` is an argument that has none.
        types: Name and number of arguments of each type.
        constants: Names that stand for a value by themselves.
        literals: Names of types at the head of ``#(…)``.

    Attributes:
        signatures: What each function takes.
        types: As given, like ``literals``.
        constants: As given, with those of the notation.
    """

    def __init__(
        self,
        functions: Iterable[tuple[str, tuple[str, ...]]],
        types: Iterable[tuple[str, int]],
        constants: Iterable[str] = (),
        literals: Iterable[str] = (),
    ) -> None:
        overloads: dict[str, list[tuple[str, ...]]] = {}
        for name, arguments in functions:
            overloads.setdefault(name, []).append(arguments)
            if "." in name and arguments == ("obj",):
                overloads.setdefault(f"{name}_?", []).append(("constraint",))
        self.signatures = {name: _signature(of_name) for name, of_name in overloads.items()}
        self.signatures["do"] = Signature(1, None, frozenset())
        self.types = frozenset(types)
        self.constants = frozenset({"true", "false", *constants})
        self.literals = frozenset(literals)

    @property
    def functions(self) -> frozenset[str]:
        """Every function that may head a call."""
        return frozenset(self.signatures)

    @property
    def is_empty(self) -> bool:
        """Whether there is no function but that of the notation."""
        return self.functions <= {"do"}

    def __or__(self, other: ApiNames) -> ApiNames:
        """The names of both; a function takes what it takes in either."""
        both = ApiNames((), self.types | other.types, self.constants | other.constants, self.literals | other.literals)
        for names in (self, other):
            for name, signature in names.signatures.items():
                both.signatures[name] = _either(both.signatures.get(name, signature), signature)
        return both


def _signature(overloads: list[tuple[str, ...]]) -> Signature:
    keywords = frozenset(f":{name}" for arguments in overloads for name in arguments if name)
    return Signature(min(1, *map(len, overloads)), max(map(len, overloads)), keywords)


def _either(one: Signature, other: Signature) -> Signature:
    most = None if one.max_args is None or other.max_args is None else max(one.max_args, other.max_args)
    return Signature(min(one.min_args, other.min_args), most, one.keywords | other.keywords)
