"""Whether a file that is said to be public says what a private one does, whatever its form."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from datamodules.reading.columns import Columns
from datamodules.reading.embedded import is_embedded
from datamodules.reading.examples import iter_examples, utterances_of
from datamodules.reading.files import expand_path, state_of
from datamodules.reading.hub import is_on_hub
from datamodules.reading.records import read_records
from datamodules.reading.utterances import Utterances, form_of, words_of
from doppel.errors import DataError, UserError

#: A file, and what its columns are called.
Source = tuple[str, Columns | None]
#: A file that is to be public: the field or option that names it, its path (None: there is none) and its columns.
Named = tuple[str, str | None, Columns | None]

#: Of the long utterances of a file: the share, and how many above it, that another file may say too.
SHARE, MORE = 0.2, 4
#: Of all its utterances: the share at which it says nothing of its own.
NEARLY_ALL = 0.9
#: Letters from which on forms are compared, and the share of them above chance that another file may say too.
LEAST, ABOVE_CHANCE = 10, 0.3
#: Words that one mask stands for, at most.
IN_A_MASK = 4


class Overlap(NamedTuple):
    """A private file that a public one says.

    Attributes:
        path: As it is named.
        told: The share that is the same, in tens of percent, in words.
    """

    path: str
    told: str


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
                f"{name} is {path}, which is to be public but says what the private file {found.path} does, in "
                f"whatever form ({found.told}): no noise would hide what it tells. Name a file of other texts, or do "
                "not declare this one public"
            )


def overlapping(path: str, columns: Columns | None, private: Iterable[Source]) -> Overlap | None:
    """Find the first private file that shares its utterances with a file, in either direction.

    Compared are distinct utterances as their letters and digits in one case, and their forms, which are without digits
    and masks (:class:`~datamodules.reading.utterances.Utterances`), whatever the form and the order of the file; where
    the public file has trees alone, the trees. Two files overlap if one of them shares more than a fifth of its long
    utterances (30 letters and digits) and four more; or nine tenths of all; or, of its forms with at least 10 letters,
    30 % and four more *above what chance gives*. Where the public file has masks for names (``[NAME]``, ``***``,
    ``person1``), a private form counts too that is the same with one to four words in the place of each.

    What chance gives for forms of a length is the share of lines that one half of the other file has in common
    with its other half (:attr:`~datamodules.reading.utterances.Utterances.chances`): short requests are said by many.
    The bounds were chosen on public data, of five statistics, three least lengths and three floors for short ones.
    Above chance, files of one kind shared at most 8 % of 10 letters on (20 % where the public file says nothing twice,
    16 % where its names are masked; SMCalFlow, Schema-Guided Dialogue, Schema2QA, Yelp, support messages, the embedded
    grammar, and their parts of 30 lines on), and four fifths of their short requests at least 38 %. Of 3,000 files of
    50 or 300 turns none was refused, in either direction. Below the bounds nothing is noticed: some private
    lines in a public file, names that were replaced by others or left out, or lines that were rewritten.

    Formal guarantees:
        All that leaves of a private file is whether a command is refused, and then the share in tens of percent, told
        on the console to whoever can open the file and names another as public; and of a parser, whether ``evaluate``
        notes that no ε covers its figures. No ε covers it, and no release depends on it.

    Args:
        path: The file, which is to be public. The embedded grammar is, and overlaps with nothing.
        columns: What its columns are called.
        private: Others; of one that is not there the path alone is compared, and one that is embedded is passed over.

    Returns:
        The other file and what is the same; None if there is none.

    Raises:
        DataError: A file cannot be read.
    """
    if is_embedded(path):
        return None
    path = expand_path(path)
    for name, others in private:
        other = expand_path(name)
        if os.path.realpath(path) == os.path.realpath(other):
            return Overlap(name, "it is that file")
        if is_embedded(other) or not (is_on_hub(other) or os.path.exists(other)):
            continue
        if state_of(path) == state_of(other):
            return Overlap(name, "it is that file")
        told = _same(_Said(path, columns), _Said(other, others))
        if told is not None:
            return Overlap(name, told)
    return None


class _Said:
    """What a file says: its utterances, or, of trees alone, these."""

    def __init__(self, path: str, columns: Columns | None) -> None:
        self._path, self._columns = path, columns

    def utterances(self) -> Utterances:
        return utterances_of(self._path, self._columns)

    def trees(self) -> Utterances:
        return Utterances.of(self.texts(is_of_trees=True))

    def texts(self, is_of_trees: bool) -> Iterator[str]:
        """The texts themselves, or the trees as they are written; opens the file again."""
        if not is_of_trees:
            turns = iter_examples(self._path, "utterance", with_trees=False, columns=self._columns)
            yield from (turn.utterance for turn in turns)
            return
        for _, record in read_records(self._path):
            layout = (self._columns or Columns()).layout(record)
            turns = record["turns"] if layout.is_dialogue and isinstance(record["turns"], list) else [record]
            column = "lispress" if layout.is_dialogue else str(layout.parse)
            trees = (turn.get(column) for turn in turns if isinstance(turn, dict))
            yield from (tree for tree in trees if isinstance(tree, str))


def _same(public: _Said, private: _Said) -> str | None:
    """How much of one file the other says, in words; None if not more than two files of one kind."""
    is_of_trees = False
    try:
        ours = public.utterances()
    except DataError:
        ours, is_of_trees = public.trees(), True
        if not len(ours):
            raise
    theirs = private.trees() if is_of_trees else private.utterances()
    what = "trees" if is_of_trees else "requests"
    common = _common(ours.long, theirs.long)
    common_of_all = common + _common(ours.short, theirs.short)
    in_public = np.isin(theirs.forms, ours.forms, assume_unique=True)
    if ours.num_masked > MORE + len(theirs.forms) / 10:  # fewer would not be noticed
        around = _around_masks(public.texts(is_of_trees), private.texts(is_of_trees))
        in_public |= np.isin(theirs.forms, np.frombuffer(around, dtype=np.uint64))
    in_private = np.isin(ours.forms, theirs.forms, assume_unique=True)
    for said, other, hits, told in (
        (theirs, ours, in_public, f"that file's {what} stand in it"),
        (ours, theirs, in_private, f"its {what} stand in that file"),
    ):
        is_copy = common_of_all >= max(1, NEARLY_ALL * len(said))
        is_copy |= not is_of_trees and common > SHARE * len(said.long) + MORE  # no tree is long
        if is_copy or _is_more_than_chance(said, hits, other):
            share = max(common_of_all / len(said), float(hits.sum() / max(len(hits), 1)))
            return f"some {10 * round(10 * share)} % of {told}"
    return None


def _is_more_than_chance(said: Utterances, hits: NDArray[np.bool_], other: Utterances) -> bool:
    """Whether those forms that another file says, too, are more than in two files of one kind."""
    kept = said.lengths >= LEAST
    return bool(hits[kept].sum() > other.chance_of(said.lengths[kept]).sum() + ABOVE_CHANCE * kept.sum() + MORE)


def _common(ours: NDArray[np.uint64], theirs: NDArray[np.uint64]) -> int:
    return len(np.intersect1d(ours, theirs, assume_unique=True))


def _around_masks(public: Iterable[str], private: Iterable[str]) -> bytes:
    """Digests of private texts that are a public one with a few words in the place of each of its masks."""
    behind: dict[str, set[tuple[str, ...]]] = {}
    for text in public:
        form = form_of(text)
        if form.is_masked and form.num_letters >= LEAST:
            before, *rest = form.parts
            behind.setdefault(before, set()).add(tuple(rest))
    return b"".join(form_of(text).digest for text in private if _is_around(words_of(text), behind))


def _is_around(words: list[str], behind: Mapping[str, Collection[tuple[str, ...]]]) -> bool:
    """Whether words begin with a key and go on with its parts, behind a few words each."""
    said, places = "".join(words), [0]
    for word in words:
        places.append(places[-1] + len(word))
    number = {place: index for index, place in enumerate(places)}

    def goes_on(start: int, parts: tuple[str, ...]) -> bool:
        for place in places[start + 1 : start + 1 + IN_A_MASK]:
            end = place + len(parts[0])
            if len(parts) == 1 and said[place:] == parts[0]:
                return True
            if (
                len(parts) > 1
                and end in number
                and said.startswith(parts[0], place)
                and goes_on(number[end], parts[1:])
            ):
                return True
        return False

    return any(goes_on(start, parts) for start, place in enumerate(places) for parts in behind.get(said[:place], ()))
