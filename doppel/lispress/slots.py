"""Names as slots: the quoted strings of a tree and their occurrences in its utterance become ``person1``, ``event1``.

A string has a *kind*, which a public table tells from the tree around it: the string in ``(PersonName.apply "Ana")``
is a ``person``. Its slot is the kind and a number, counted in the order of the tree, in the tree and in the utterance:

    Lunch with Ana at noon      … (Event.subject_? (?= "Lunch")) … (PersonName.apply "Ana") …
    event1 with person1 at noon … (Event.subject_? (?= "event1")) … (PersonName.apply "person1") …

Strings of no kind stay as they are: a program needs some of them (``(Path.apply "output")``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import NamedTuple

from doppel.lispress.expression import STRING_BODY_PATTERN, SYMBOL_PATTERN, String
from doppel.text.occurrences import Strings, fold, merged

_TOKEN = re.compile(rf'([()^])|"({STRING_BODY_PATTERN})"|({SYMBOL_PATTERN})|(\S)', re.DOTALL)
_MARK, _STRING, _SYMBOL = 1, 2, 3
_QUOTED = re.compile(rf'"({STRING_BODY_PATTERN})"', re.DOTALL)
_TRIES = 20
_VOWELS = frozenset("aeiou")
_IS_KIND = re.compile(r"[a-z]+").fullmatch
_IN_A_SLOT = re.compile("[a-zA-Z0-9]").fullmatch
#: What stands before a name, and what stands behind it or tells two of one name apart.
_TITLE = "dr|doctor|mr|mister|mrs|ms|mx|miss|sir|madam|dame|prof|professor|rev|herr|frau|sra?|srta|do[nñ]a?|mme|mlle"
_AFTER = r"(?:,\s*|\s+)(?:jr|sr|phd|ph\.d|md|esq|ii|iii)\.?|(?<=[^\W\d_]{2})\d+"
_NAME = re.compile(rf"(?:(?:{_TITLE})(?:\.\s*|\s+))*(?P<name>\w.*?)(?:{_AFTER})*", re.IGNORECASE | re.DOTALL)


class Slotted(NamedTuple):
    """A tree and its utterance with slots in place of names.

    Attributes:
        tree: The tree.
        utterance: The utterance; empty where none was given.
        values: What each slot stands for, in the order of the tree.
    """

    tree: str
    utterance: str
    values: dict[str, str]


class SlotKinds:
    """Of which kind a quoted string is: a public table.

    Args:
        names: Of each kind (lower-case letters) the functions, types and arguments (``:name``) whose strings are of it.
            A star stands for any characters: ``*.city_?`` is the constraint on the field ``city`` of any type. A slash
            says what is around it: ``FindPlace/LocationKeyphrase.apply`` is the second directly in the first. The
            innermost form around a string that the table names decides, and of two kinds the first.

    Raises:
        ValueError: A kind is no lower-case word.
    """

    def __init__(self, names: Mapping[str, Sequence[str]]) -> None:
        for kind in names:
            if not _IS_KIND(kind):
                raise ValueError(f"the kind {kind!r} of placeholders is not a word of lower-case letters a to z")
        self.names = {kind: tuple(of_kind) for kind, of_kind in names.items()}
        self._paths = [(kind, name.split("/")[::-1]) for kind, of_kind in self.names.items() for name in of_kind]
        self._depth = max((len(path) for _, path in self._paths), default=1)
        self._kind_of = lru_cache(maxsize=1 << 14)(self._look_up)
        words = "|".join(sorted(map(re.escape, self.names), key=len, reverse=True)) or "(?!)"
        slot = rf"(?<![a-zA-Z0-9])({words})([1-9][0-9]*)(?![a-zA-Z0-9])"
        self.slot = re.compile(slot, re.IGNORECASE)
        self.slot_with_article = re.compile(rf"(?P<article>(?<![\w'])an?\s+)?{slot}", re.IGNORECASE)

    def __reduce__(self) -> tuple[type[SlotKinds], tuple[dict[str, tuple[str, ...]]]]:
        """Pickled as its table: another process remembers by itself what it has looked up."""
        return SlotKinds, (self.names,)

    def _look_up(self, forms: tuple[_Names, ...]) -> str | None:
        """The kind of what stands directly in the first of some forms, each in the next; None where it has none."""
        for kind, path in self._paths:
            is_at = (any(fnmatchcase(n, p) for n in form if n) for p, form in zip(path, forms, strict=False))
            if len(path) <= len(forms) and all(is_at):
                return kind
        return None

    def strings(self, tree: str) -> Iterator[tuple[int, int, str]]:
        """Start, end (without quotes) and kind of the strings of a tree that have a kind and hold more than blanks.

        Any text has some, also one that is no well-formed tree: brackets alone say what is around what.
        """
        forms = [_Form()]
        for token in _TOKEN.finditer(tree):
            form = forms[-1]
            if token.lastindex == _MARK and token[0] == "(":
                forms.append(_Form(is_type=form.awaits_type))
                form.awaits_type = False
            elif token.lastindex == _MARK and token[0] == "^":
                form.awaits_type = True
            elif token.lastindex == _MARK:
                is_type = form.is_type
                if len(forms) > 1:
                    forms.pop()
                if not is_type:
                    forms[-1].argument = None
            elif token.lastindex == _SYMBOL:
                form.take(token[0])
            elif token.lastindex == _STRING:
                kind = self._kind_inside(forms) if String(token[_STRING]).value.strip() else None
                if kind is not None:
                    yield *token.span(_STRING), kind
                form.argument = None

    def _kind_inside(self, forms: Sequence[_Form]) -> str | None:
        names = tuple((form.argument, form.head) for form in reversed(forms))
        around = (names[i : i + self._depth] for i in range(len(names)))
        return next((kind for inner in around if (kind := self._kind_of(inner)) is not None), None)


_Names = tuple[str | None, str | None]
"""Argument and head of a form."""


class _Form:
    """An open bracket: what it calls, and the argument that comes next."""

    __slots__ = ("argument", "awaits_type", "head", "is_type")

    def __init__(self, is_type: bool = False) -> None:
        self.head: str | None = None
        self.argument: str | None = None
        self.awaits_type = False
        self.is_type = is_type

    def take(self, symbol: str) -> None:
        """Read a symbol."""
        if self.awaits_type:
            self.awaits_type = False
        elif self.head is None:
            self.head = symbol
        else:
            self.argument = symbol if symbol.startswith(":") else None


def to_slots(tree: str, utterance: str, kinds: SlotKinds) -> Slotted:
    """Put slots in place of the strings of a tree that have a kind, and of every occurrence of them in its utterance.

    What an occurrence is, says :class:`~doppel.text.occurrences.Strings`; those that overlap become the slot of the
    longest. A name is also one without its title and what tells it from others: ``Dr. Ana Cruz`` occurs as ``Ana
    Cruz``, and ``Ana2`` as ``Ana``.
    A string that the utterance does not have becomes a slot in the tree alone. Strings of one kind that are equal as
    they are compared, such as those that differ in case, share a slot.

    Formal guarantees:
        The result is a function of this tree, this utterance and a public table. So a row stays one row of its unit,
        and what a unit can contribute to a step is bounded as before: it costs no ε. No string that has a kind is left
        in the tree, nor in the utterance where it occurs as told above. A string without a kind, a name that the tree
        does not quote, and another form of one ("Annas") are left.

    Args:
        tree: Any text; slots are put into a tree that is not well-formed too.
        utterance: Any text.
        kinds: The table.
    """
    slots: dict[tuple[str, str], str] = {}
    values: dict[str, str] = {}
    counts: dict[str, int] = {}
    pieces: list[str] = []
    end = 0
    for start, stop, kind in kinds.strings(tree):
        value = " ".join(String(tree[start:stop]).value.split())
        if not value:
            continue
        key = kind, fold(value)
        slot = slots.get(key)
        if slot is None:
            counts[kind] = counts.get(kind, 0) + 1
            slot = slots[key] = f"{kind}{counts[kind]}"
            values[slot] = value
        pieces += tree[end:start], slot
        end = stop
    new_tree = "".join((*pieces, tree[end:]))
    return Slotted(new_tree, _replace(utterance, values), values)


def _replace(utterance: str, values: Mapping[str, str]) -> str:
    """The utterance with slots in place of their values; a slot is a word, also where the script has no blanks."""
    slot_of: dict[str, str] = {}
    for slot, value in values.items():
        slot_of.setdefault(value, slot)
    for slot, value in values.items():
        if (name := _NAME.fullmatch(value)) is not None:
            slot_of.setdefault(name["name"], slot)
    said, end = "", 0
    for start, stop, value in merged(Strings(slot_of).find(utterance)):
        said += utterance[end:start]
        said += (" " if _IN_A_SLOT(said[-1:]) else "") + slot_of[value]
        if _IN_A_SLOT(utterance[stop : stop + 1]):
            said += " "
        end = stop
    return said + utterance[end:]


def slots_of(text: str, kinds: SlotKinds) -> list[str]:
    """Return the distinct slots of an utterance or a tree, in the order of the text."""
    return list(dict.fromkeys(_slot(match) for match in kinds.slot.finditer(text)))


def fill_utterance(utterance: str, kinds: SlotKinds, value_of: Callable[[str], str]) -> str:
    """Put values in place of the slots, as ``person1``, of an utterance; "a" and "an" before one follow its value."""

    def fill(match: re.Match[str]) -> str:
        value = value_of(_slot(match))
        article = match["article"] or ""
        if article:
            article = article[0] + ("n" if value[:1].lower() in _VOWELS else "") + article[len(article.rstrip()) :]
        return article + value

    return kinds.slot_with_article.sub(fill, utterance)


def fill_tree(tree: str, kinds: SlotKinds, value_of: Callable[[str], str]) -> str:
    """Put values in place of the slots in the quoted strings of a tree, which keeps its structure."""

    def body(match: re.Match[str]) -> str:
        return '"' + kinds.slot.sub(lambda slot: String.of(value_of(_slot(slot))).spelling, match[1]) + '"'

    return _QUOTED.sub(body, tree)


def _slot(match: re.Match[str]) -> str:
    kind, number = match.groups()[-2:]
    return f"{kind.lower()}{number}"


def distinct_values(draw: Callable[[str], str], taken: Iterable[str]) -> Callable[[str], str]:
    """Return a function that gives each slot one value, none that is taken, and no two the same, unless all tries fail.

    Args:
        draw: Draws a value of a kind.
        taken: Values that are used already.
    """
    values: dict[str, str] = {}
    used = {value.lower() for value in taken}

    def value_of(slot: str) -> str:
        if slot not in values:
            kind = slot.rstrip("0123456789")
            value = draw(kind)
            for _ in range(_TRIES):
                if value.lower() not in used:
                    break
                value = draw(kind)
            used.add(value.lower())
            values[slot] = value
        return values[slot]

    return value_of
