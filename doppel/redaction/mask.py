"""Texts with masks in place of words.

A *word* is what stands between blanks, with the punctuation at its ends, so that a text whose words are all masked says
nothing but how little it said. Words are compared by their *key*: without that punctuation, in one case.

Redaction is no privacy mechanism: nothing bounds what the words that are left tell of the hidden ones, or of whoever
wrote them. Its effect is measured (:mod:`doppel.redaction.attack`), and no ε belongs to it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from doppel.errors import UserError
from doppel.lispress.expression import STRING_BODY_PATTERN
from doppel.text.forms import key_of

#: What stands in place of hidden words.
MASK = "[MASK]"

_BEFORE, _AFTER = re.compile(r"^[\"'“‘]*"), re.compile(r"(['’]s)?[.,;:!?\"'”’]*$", re.IGNORECASE)
_QUOTED = re.compile(rf'"({STRING_BODY_PATTERN})"', re.DOTALL)


class Span(NamedTuple):
    """Words ``start`` to ``stop`` (without it), and what they are, such as ``person``; None if nobody says."""

    start: int
    stop: int
    kind: str | None


class _Replacement(NamedTuple):
    """A pseudonym in place of words ``start`` to ``stop`` (without it)."""

    start: int
    stop: int
    name: str


class Rule(Protocol):
    """Finds words that are hidden whatever they tell: a list, a pattern, names."""

    def find(self, words: Sequence[str]) -> Iterable[Span]:
        """Return the words of one text that are to be hidden; a function of these words and of public rules."""


class Ranker(Protocol):
    """Says how much each word tells which of two sets a text is from."""

    def scores(self, words: Sequence[str]) -> NDArray[np.float64]:
        """Return how telling each word of one text is, at least 0, [num_words]; a function of these words alone."""


Pseudonym = Callable[[str, str], str | None]
"""A word in place of one of a kind: given the kind and the key of what is hidden; None where the mask stands."""


def _is_within(key: str, keys: Iterable[str]) -> bool:
    """Whether a word of a script without borders of words is a part of others."""
    return key.upper() == key.lower() and any(map(str.isalpha, key)) and any(key in other for other in keys)


def keys_of(text: str) -> list[str]:
    """Return the keys of the words of a text, without empty ones."""
    return [key for key in map(key_of, text.split()) if key]


def num_masked(level: float, num_words: int) -> int:
    """Return ⌈p·n⌉: how many of n words a level p in [0, 1] hides."""
    return min(num_words, math.ceil(level * num_words - 1e-9))  # .7 · 10 is 7, whatever floating point says


@dataclass(frozen=True)
class Redacted:
    """A text and what was hidden of it.

    Attributes:
        text: The text; one blank stands between its words, and one mask for a run of them.
        words: The words as they were.
        hidden: The places of those that are hidden, also where a pseudonym stands for them.
        masked: Those of them for which a mask stands.
        given: Keys of what a pseudonym stands for → the pseudonym.
    """

    text: str
    words: tuple[str, ...]
    hidden: frozenset[int]
    masked: frozenset[int]
    given: dict[tuple[str, ...], str] = field(default_factory=dict)


class Redactor:
    """Hides words of a text: those that rules find, and the most telling ones.

    Formal guarantees:
        What a text becomes is a function of this text, of the rules and the ranker. So where these are public, a row
        stays one row of its unit whatever the others are; redaction then neither costs nor saves any ε. Nothing is
        guaranteed of the hidden words.

    Args:
        rules: What is hidden always.
        ranker: Says which words are telling; None: no words are hidden for that.
        level: p, the share of a text's words that is hidden for it, rounded up, in [0, 1]. Of equally telling words the
            first ones.
        pseudonym: Words in place of the masks of what rules find; None: masks. A word that the ranker hides has a mask.

    Raises:
        UserError: The level is no share, or there is no ranker for it.
    """

    def __init__(
        self,
        rules: Sequence[Rule] = (),
        ranker: Ranker | None = None,
        level: float = 0.0,
        pseudonym: Pseudonym | None = None,
    ) -> None:
        if not 0 <= level <= 1:
            raise UserError(f"the level of redaction is {level}: give a share of the words, between 0 and 1")
        if level > 0 and ranker is None:
            raise UserError(
                f"the level of redaction is {level}, and nothing ranks the words: give a ranker, or level 0"
            )
        self.rules, self.ranker, self.level, self.pseudonym = tuple(rules), ranker, level, pseudonym

    def redact(self, text: str) -> Redacted:
        """Hide words of a text."""
        words = text.split()
        return self._hidden(words, self._telling(words))

    def redact_tree(self, tree: str, said: Redacted) -> str:
        """Hide in the quoted strings of a tree what was hidden in its utterance, and what the rules find in them.

        What stands outside of quotes, such as functions and numbers, is kept: without it there is no tree. So a number
        that is masked in the utterance may still stand in the tree.

        Args:
            tree: A tree of the text; any other text is dealt with alike.
            said: The text as it was redacted.
        """
        keys = {key_of(said.words[place]) for place in said.masked} - {""}

        def hide(match: re.Match[str]) -> str:
            words = match[1].split()
            own = [key_of(word) for word in words]
            known = [
                _Replacement(start, start + len(of), name)
                for of, name in said.given.items()
                for start in range(len(own) - len(of) + 1)
                if tuple(own[start : start + len(of)]) == of
            ]
            masked = [place for place, key in enumerate(own) if key in keys or _is_within(key, keys)]
            found = self._hidden(words, masked, known)
            return f'"{found.text}"' if found.hidden else match[0]

        return _QUOTED.sub(hide, tree)

    def _telling(self, words: Sequence[str]) -> list[int]:
        num = num_masked(self.level, len(words))
        if not num or self.ranker is None:
            return []
        if num == len(words):
            return list(range(num))
        return np.argsort(-self.ranker.scores(words), kind="stable")[:num].tolist()

    def _hidden(self, words: Sequence[str], masked: Sequence[int], known: Sequence[_Replacement] = ()) -> Redacted:
        """Words of which some are masked, and what rules find has a pseudonym if it can have one, else a mask.

        Args:
            words: Of a text.
            masked: Places of words that are masked; those of an earlier redaction are too.
            known: Pseudonyms that are known already; of two that are equally long these are taken.
        """
        spans = [span for rule in self.rules for span in rule.find(words)]
        must = {*masked, *(place for place, word in enumerate(words) if word == MASK)}
        replaced = _disjoint([*known, *self._replacements(words, spans)], must)
        named = {place for each in replaced for place in range(each.start, each.stop)}
        found = {place for span in spans for place in range(span.start, span.stop)}
        hidden = frozenset(must | found | named)
        given = {tuple(map(key_of, words[each.start : each.stop])): each.name for each in replaced}
        return Redacted(_text(words, hidden - named, replaced), tuple(words), hidden, hidden - named, given)

    def _replacements(self, words: Sequence[str], spans: Sequence[Span]) -> Iterator[_Replacement]:
        for span in spans:
            if self.pseudonym is not None and span.kind is not None:
                name = self.pseudonym(span.kind, " ".join(map(key_of, words[span.start : span.stop])))
                if name is not None:
                    yield _Replacement(span.start, span.stop, name)


def _disjoint(candidates: Sequence[_Replacement], taken: Set[int]) -> list[_Replacement]:
    """The longest replacements that touch neither places that are taken nor one another; of equally long ones the first
    in the text."""
    found: list[_Replacement] = []
    for each in sorted(candidates, key=lambda each: (each.start - each.stop, each.start)):
        places = frozenset(range(each.start, each.stop))
        if not places & taken:
            taken = taken | places
            found.append(each)
    return found


def _text(words: Sequence[str], masked: Set[int], replaced: Sequence[_Replacement]) -> str:
    """Words with a mask for each run of masked ones, and pseudonyms in place of others."""
    at, pieces, place = {each.start: each for each in replaced}, list[str](), 0
    while place < len(words):
        if (each := at.get(place)) is not None:
            pieces.append(_as_written(each.name, words[place], words[each.stop - 1]))
            place = each.stop
            continue
        if place not in masked:
            pieces.append(words[place])
        elif place - 1 not in masked:
            pieces.append(MASK)
        place += 1
    return " ".join(pieces)


def _as_written(name: str, first: str, last: str) -> str:
    """A pseudonym between the punctuation of what it stands for."""
    before, after = _BEFORE.search(first), _AFTER.search(last)
    assert before is not None and after is not None
    return f"{before[0]}{name}{after[0]}"
