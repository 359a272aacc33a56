"""Whether a file that is said to be public says what a private one does, whatever its form."""

from __future__ import annotations

import os
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from datamodules.reading.columns import Columns
from datamodules.reading.examples import utterances_of
from datamodules.reading.files import expand_path, is_embedded, state_of
from datamodules.reading.hub import is_on_hub
from doppel.errors import UserError

#: A file, and what its columns are called.
Source = tuple[str, Columns | None]
#: A file that is to be public: the field or option that names it, its path (None: there is none) and its columns.
Named = tuple[str, str | None, Columns | None]

#: Of the long utterances of a file: the share, and how many above it, that another file may say too.
SHARE, MORE = 0.2, 4
#: Of all its utterances: the share at which it says nothing of its own.
NEARLY_ALL = 0.9


def refuse_private(public: Iterable[Named], private: Iterable[Source]) -> None:
    """Refuse a file that is to be public and is a private one, in whatever form; nothing is told of either's text.

    This is the one check of its kind. A run makes it of all files that it names, before anything is spent; a command
    that is given a public file makes it at its start, also as a step of a run: a file may have changed since the run
    began, and a run that goes on reads no private file again by itself.

    Args:
        public: The files that are to be public.
        private: The files that are not.

    Raises:
        UserError: One is, see :func:`overlapping`.
        DataError: A file cannot be read.
    """
    private = list(private)
    for name, path, columns in public:
        found = None if path is None else overlapping(path, columns, private)
        if found is not None:
            raise UserError(
                f"{name} is {path}, which is to be public but says what the private file {found} does, in whatever "
                "form: no noise would hide what it tells. Name a file of other texts, or do not declare this one public"
            )


def overlapping(path: str, columns: Columns | None, private: Iterable[Source]) -> str | None:
    """Find the first private file that shares its utterances with a file, in either direction.

    Compared are distinct utterances as their letters and digits in one case
    (:class:`~datamodules.reading.utterances.Utterances`), whatever the form of the file. Two files overlap if one of
    them shares more than a fifth of its long utterances (30 letters and digits) and four more, or nine tenths of all,
    which is the only rule for a file with at most five long ones. Public data of one kind share some too: at most 3.1 %
    of long and 16 % of all utterances were measured between whole files, 27 and 56 % for the worst of 1,000 files of 50
    turns, and 100 % for a copy. Below both bounds nothing is noticed: some private lines in a public file, or lines
    that were rewritten.

    Formal guarantees:
        All that leaves of a private file is whether a command is refused: one bit, told to whoever can open the file
        and names another as public. It covers no release, and no release depends on it.

    Args:
        path: The file, which is to be public. The embedded grammar is, and overlaps with nothing.
        columns: What its columns are called.
        private: Others; of one that is not there the path alone is compared, and one that is embedded is passed over.

    Returns:
        The other file as it is named there; None if there is none.

    Raises:
        DataError: A file cannot be read.
    """
    if is_embedded(path):
        return None
    path = expand_path(path)
    for name, others in private:
        other = expand_path(name)
        if os.path.realpath(path) == os.path.realpath(other):
            return name
        if is_embedded(other) or not (is_on_hub(other) or os.path.exists(other)):
            continue
        if state_of(path) == state_of(other):
            return name
        ours, theirs = utterances_of(path, columns), utterances_of(other, others)
        common = _common(ours.long, theirs.long)
        common_of_all = common + _common(ours.short, theirs.short)
        for said in (ours, theirs):
            if common > SHARE * len(said.long) + MORE or common_of_all >= max(1, NEARLY_ALL * len(said)):
                return name
    return None


def _common(ours: NDArray[np.uint64], theirs: NDArray[np.uint64]) -> int:
    return len(np.intersect1d(ours, theirs, assume_unique=True))
