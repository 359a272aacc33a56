"""What the assistant supports: names and patterns that an experiment gives, a file of them, or the table of its API."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from doppel.errors import UserError
from doppel.lispress.api_table import read_api_names

_ROOT = Path(__file__).resolve().parents[2]
#: Functions by which SMCalFlow's annotators marked requests that are outside of what the assistant does.
_FENCES = "Fence*"


@dataclass(frozen=True)
class Supported:
    """Which functions, or labels, the assistant supports.

    Attributes:
        patterns: Names, or starts of names with a star, that it supports; empty: all but the others.
        without: Those that it does not, whatever ``patterns`` say.
        source: Where that is said, in words.
    """

    patterns: frozenset[str]
    without: frozenset[str]
    source: str

    def holds(self, name: str) -> bool:
        """Whether it supports a function or label."""
        return not _matches(name, self.without) and (not self.patterns or _matches(name, self.patterns))

    def unused(self, names: Iterable[str]) -> list[str]:
        """What it is said not to support and is none of ``names``: too rare to be seen, or misspelt."""
        names = list(names)
        return sorted(p for p in self.without - {_FENCES} if not any(_matches(name, frozenset([p])) for name in names))


def read_supported(named: Sequence[str] | str | None, tables: Sequence[str] = ()) -> Supported | None:
    """What the assistant supports.

    Args:
        named: Names of functions or labels; a star at the end takes all that begin so, ``!NAME`` is not supported, and
            where there are such names alone, all others are. Or a file of them, one a line, or a ``.csv`` table of the
            API. None: what follows from ``tables``.
        tables: Public tables of the API under which trees were sampled.

    Returns:
        None where nothing says it.

    Raises:
        UserError: A file cannot be read, or says nothing.
    """
    if named is None and tables:
        names = [read_api_names([_place(table)]).functions for table in tables]
        source = f"the functions of {' and '.join(Path(table).name for table in tables)}, but for {_FENCES}"
        return Supported(frozenset(name for table in names for name in table), frozenset([_FENCES]), source)
    if named is None:
        return None
    words, source = list(named), "the field supported of the experiment"
    if isinstance(named, str) or (len(words) == 1 and _place(words[0]).is_file()):
        path = _place(named if isinstance(named, str) else words[0])
        source = path.name
        if path.suffix == ".csv":
            return Supported(frozenset(read_api_names([path]).functions), frozenset(), source)
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(
                f"supported is {str(named)!r}, which cannot be read ({error}): give a list of functions, or a file"
            ) from None
        words = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    included, without = {w for w in words if not w.startswith("!")}, {w[1:].strip() for w in words if w.startswith("!")}
    for word in [*included, *without]:
        if not word.removesuffix("*").strip() or "*" in word[:-1]:
            raise UserError(f"supported has {word!r}: give a name, or the start of one and a star")
    if not words:
        raise UserError(
            f"{source} names nothing: give functions that the assistant supports, or !NAME for one it lacks"
        )
    return Supported(frozenset(included), frozenset(without), source)


def _matches(name: str, patterns: frozenset[str]) -> bool:
    return name in patterns or any(p.endswith("*") and name.startswith(p[:-1]) for p in patterns)


def _place(path: str) -> Path:
    """A file, also one beside the code."""
    place = Path(os.path.expanduser(os.path.expandvars(path)))
    return place if place.is_file() or not (_ROOT / place).is_file() else _ROOT / place
