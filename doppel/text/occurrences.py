"""Where strings, such as names, stand in a text, however they are written there."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from doppel.text.forms import fold_character, is_invisible

_END = ""
_POINT = "\ue000"


class Occurrence(NamedTuple):
    """Characters ``start`` to ``stop`` (without it) of a text are one of the strings."""

    start: int
    stop: int
    string: str


class Strings:
    """Strings that are looked for in texts.

    A text says a string in whole words. Upper and lower case are one (also İ, ı and i), and so are the ways to write a
    character (NFKC), all apostrophes, and blanks, hyphens and underscores. Characters that nobody sees do not count. A
    text may leave out blanks, hyphens, apostrophes and dots of the string, have more hyphens and dots, and write the
    number at the end of a word apart (``Ana 2`` is ``Ana2``); a decimal keeps its point. A word ends before a number
    that is written to it (``Ana2`` says ``Ana``), and between two other letters or digits only in scripts that have no
    upper and lower case: many of those write no blank between words, or write particles and prepositions with the name
    (Chinese, Japanese, Thai, Korean, Arabic, Hebrew).

    Args:
        strings: Any. One of blanks, hyphens and characters that nobody sees is never found.
    """

    def __init__(self, strings: Iterable[str]) -> None:
        self._root: dict[str, Any] = {}
        for string in dict.fromkeys(strings):
            node = self._root
            folded = fold(string)
            for sign in _before_numbers(_points(list(folded.strip(" '.") or folded))):
                node = node.setdefault(sign, {})
            if node is not self._root:
                node.setdefault(_END, []).append(string)

    def find(self, text: str) -> Iterator[Occurrence]:
        """Yield each occurrence in a text, by its start, also those that overlap."""
        signs, places = _signs(text)
        signs = _points(signs)
        places.append(len(text))
        for first, sign in enumerate(signs):
            is_inside = first > 0 and places[first - 1] == places[first]  # of a character of several letters, such as ﬁ
            if is_inside or sign in " -" or _joins(text, places[first]):
                continue
            nodes = [self._root]
            for last in range(first, len(signs)):
                nodes = [after for node in nodes for after in _after(node, signs[last])]
                if not nodes:
                    break
                stop = places[last] + 1
                if signs[last] not in " -" and places[last + 1] >= stop and not _goes_on(text, stop):
                    for string in dict.fromkeys(string for node in nodes for string in node.get(_END, ())):
                        if signs[last] != "." or string.rstrip().endswith("."):  # else it ends the sentence
                            yield Occurrence(places[first], stop, string)


def merged(found: Iterable[Occurrence]) -> list[Occurrence]:
    """Return occurrences that overlap as one, with the longest one's string, of equally long ones the first."""
    groups: list[list[Occurrence]] = []
    stop = 0
    for one in sorted(found, key=lambda one: one.start):
        if not groups or one.start >= stop:
            groups.append([])
        groups[-1].append(one)
        stop = max(stop, one.stop) if len(groups[-1]) > 1 else one.stop
    longest = [max(group, key=lambda one: one.stop - one.start) for group in groups]
    return [
        Occurrence(group[0].start, max(one.stop for one in group), best.string)
        for group, best in zip(groups, longest, strict=True)
    ]


def fold(text: str) -> str:
    """Normalise a text for comparison: case, Unicode forms, hyphens and runs of blanks."""
    return "".join(_signs(text)[0]).replace("-", " ").strip()


def _after(node: dict[str, Any], sign: str) -> Iterator[dict[str, Any]]:
    """Where a sign of a text leads from a place in the strings."""
    if sign in node:
        yield node[sign]
    if sign == "-":
        yield node
        sign = " "
        if sign in node:
            yield node[sign]
    if sign == ".":
        yield node
    for left_out in " '.":
        if left_out in node and sign != left_out:
            yield from _after(node[left_out], sign)


def _points(signs: list[str]) -> list[str]:
    """Signs with the point of a decimal as one of its own, which is not left out."""
    inner = range(1, len(signs) - 1)
    points = [i for i in inner if signs[i] == "." and signs[i - 1].isdigit() and signs[i + 1].isdigit()]
    for place in points:
        signs[place] = _POINT
    return signs


def _before_numbers(signs: list[str]) -> Iterator[str]:
    """Signs of a string with a blank between a letter and a digit, which a text may leave out."""
    for place, sign in enumerate(signs):
        if place and sign.isdigit() and signs[place - 1].isalpha():
            yield " "
        yield sign


def _signs(text: str) -> tuple[list[str], list[int]]:
    """The folded characters of a text, and of each the place that it is from."""
    signs: list[str] = []
    places: list[int] = []
    for place, char in enumerate(text):
        for sign in fold_character(char):
            before = signs[-1] if signs else ""
            if sign == "\u0307" and before == "i":
                continue  # İ
            if sign in " -" and before in (" ", "-"):
                signs[-1] = " "
                continue
            if sign == "-" and before.isdigit():
                sign = " "  # 1-2 is not 12
            elif before == "-" and sign.isdigit():
                signs[-1] = " "
            signs.append(sign)
            places.append(place)
            order, at = unicodedata.combining(sign), len(signs) - 1
            while order and at and unicodedata.combining(signs[at - 1]) > order:  # as in NFKD of the whole text
                signs[at - 1 : at + 1] = signs[at], signs[at - 1]
                at -= 1
    return signs, places


def _goes_on(text: str, place: int) -> bool:
    """Whether a word goes on at a place, other than with a number."""
    return _joins(text, place) and not (text[place].isdigit() and text[place - 1].isalpha())


def _joins(text: str, place: int) -> bool:
    """Whether the characters on both sides of a place are of one word."""
    if not 0 < place < len(text) or is_invisible(text[place]):
        return False
    is_of_one = unicodedata.category(text[place])[0] == "M" or "\u1160" <= text[place] <= "\u11ff"  # of one letter
    return is_of_one or (_is_cased(text[place - 1]) and _is_cased(text[place]))


def _is_cased(char: str) -> bool:
    """Whether a character is of a word of a script with upper and lower case, or a digit."""
    return char.isdigit() or char.lower() != char.upper() or "\u0300" <= char <= "\u036f"
