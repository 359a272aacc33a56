"""The names of a public API: its functions with what they take, and its types."""

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
    """The names of a public API, besides what the notation itself brings.

    The notation brings `let`, `lambda`, `do` with any number of statements, `true`, `false`, numbers, strings and
    variables. And for every field `T.f` of the API (a function of one argument named `obj`), `T.f_?` is the constraint
    on that field.

    A function takes at most as many arguments as its longest overload, and at least one unless some overload takes
    none; which of its arguments may be left out, and whether types agree, is not asked.

    Args:
        functions: Name and names of the arguments of each overload.
        types: Name and number of arguments of each type.

    Attributes:
        signatures: What each function takes.
        types: Number of arguments of each type.
    """

    def __init__(self, functions: Iterable[tuple[str, tuple[str, ...]]], types: Iterable[tuple[str, int]]) -> None:
        overloads: dict[str, list[tuple[str, ...]]] = {}
        for name, arguments in functions:
            overloads.setdefault(name, []).append(arguments)
            if "." in name and arguments == ("obj",):
                overloads.setdefault(f"{name}_?", []).append(("constraint",))
        self.signatures = {name: _signature(of_name) for name, of_name in overloads.items()}
        self.signatures["do"] = Signature(1, None, frozenset())
        self.types = dict(types)

    @property
    def functions(self) -> frozenset[str]:
        """Every function that may head a call."""
        return frozenset(self.signatures)


def _signature(overloads: list[tuple[str, ...]]) -> Signature:
    keywords = frozenset(f":{name}" for arguments in overloads for name in arguments)
    return Signature(min(1, *map(len, overloads)), max(map(len, overloads)), keywords)
