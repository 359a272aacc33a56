"""What the assistant supports: names and patterns that an experiment gives, a file of them, or the table of its API."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from commands.run_folder.places import ROOT
from doppel.errors import DataError, UserError
from doppel.files import read_list
from doppel.lispress.api_table import read_api_names
from doppel.tables.schema import plain

#: Functions by which SMCalFlow's annotators marked requests that are outside of what the assistant does.
_FENCES = "Fence*"
#: Words that are meant as a file: no function ends so, and a label such as ``food/drink`` does not begin so.
_IS_PATH = re.compile(r"(~|\.{0,2}/).*|.*\.(txt|csv|tsv|ya?ml|jsonl?|md)", re.IGNORECASE | re.DOTALL).fullmatch


@dataclass(frozen=True)
class Supported:
    """Which functions, or labels, the assistant supports.

    Attributes:
        patterns: Names, or starts of names with a star, that it supports; empty: all but the others.
        without: Those that it does not, whatever ``patterns`` say.
        source: Where that is said, in words.
        is_table: Whether that is a table of the API.
    """

    patterns: frozenset[str]
    without: frozenset[str]
    source: str
    is_table: bool = False

    def holds(self, name: str) -> bool:
        """Check whether it supports a function or label."""
        return not matches(name, self.without) and (not self.patterns or matches(name, self.patterns))

    def is_named(self, name: str) -> bool:
        """Check whether anything is said of a name."""
        return matches(name, self.patterns | self.without)

    def unmatched(self, names: Iterable[str]) -> list[str]:
        """Return what is said of support and fits none of ``names``: too rare to be seen, or misspelt.

        ``!`` stands as it was given. Nothing of a table of the API, whose functions are spelt right.
        """
        if self.is_table:
            return []
        names = list(names)
        given = {**dict.fromkeys(self.patterns, ""), **dict.fromkeys(self.without, "!")}
        unseen = [p for p in given if not any(matches(name, frozenset([p])) for name in names)]
        return [given[p] + p for p in sorted(unseen, key=lambda p: (given[p] == "", p))]


def read_supported(
    named: Sequence[str] | str | None, tables: Sequence[str] = (), where: str = "the experiment's list “supported”"
) -> Supported | None:
    """Read what the assistant supports.

    Args:
        named: Names of functions or labels; a star at the end takes all that begin so, ``!NAME`` is not supported, and
            where there are such names alone, all others are. Or a file of them, one a line, or a ``.csv`` table of the
            API. None: what follows from ``tables``.
        tables: Public tables of the API under which trees were sampled.
        where: Who names them, in words.

    Returns:
        None where nothing says it.

    Raises:
        UserError: A file is not there or cannot be read, or says nothing.
    """
    if named is None and tables:
        names = [read_api_names([public_file(table)]).functions for table in tables]
        source = f"the API table {' and '.join(Path(table).name for table in tables)}, but for its functions {_FENCES}"
        return Supported(frozenset(name for table in names for name in table), frozenset([_FENCES]), source, True)
    if named is None:
        return None
    words, source = [plain(word) for word in named], where
    if isinstance(named, str) or (len(words) == 1 and public_file(words[0]).is_file()):
        path = public_file(named if isinstance(named, str) else words[0])
        if path.suffix == ".csv":
            functions = frozenset(read_api_names([path]).functions)
            return Supported(functions, frozenset(), f"the API table {path.name}", True)
        source = f"the list {path.name}"
        try:
            words = [plain(line) for line in read_list(path) if not line.startswith("#")]
        except DataError as error:
            raise UserError(f"supported cannot be read, {error}; or give names of functions or labels") from None
    elif files := [word for word in words if _IS_PATH(word)]:
        is_there = public_file(files[0]).is_file()
        raise UserError(
            f"supported names the file {files[0]}{' beside other words' if is_there else ', and there is none'}: "
            "give one file alone, or names of functions or labels"
        )
    included, without = {w for w in words if not w.startswith("!")}, {w[1:].strip() for w in words if w.startswith("!")}
    for word in [*included, *without]:
        if not word.removesuffix("*").strip() or "*" in word[:-1]:
            raise UserError(f"supported has {word!r}: give a name, or the start of one and a star")
    if not words:
        raise UserError(
            f"{source} names nothing: give functions that the assistant supports, or !NAME for one it lacks"
        )
    return Supported(frozenset(included), frozenset(without), source)


def matches(name: str, patterns: frozenset[str]) -> bool:
    """Check whether a name is one of these, or begins as one with a star does."""
    name = plain(name)
    return name in patterns or any(p.endswith("*") and name.startswith(p[:-1]) for p in patterns)


def public_file(path: str) -> Path:
    """Find a file, also one beside the code."""
    place = Path(os.path.expanduser(os.path.expandvars(path)))
    return place if place.is_file() or not (ROOT / place).is_file() else ROOT / place
