"""Words that private requests say and the public reference hardly does: what nobody expected.

Each unit gives at most k words of a public vocabulary, which has no function words: those of its own texts that the
fewest texts of the reference say, of equally rare ones those that are rarest in the language. A word and its regular
plural are one. Noisy counts of them are one Gaussian release; what stands out of its noise, and is said more often than
in the reference, is shown.

Formal guarantees:
    What a unit gives is a function of its own texts, of the vocabulary and of the reference, which are public; which
    words of the vocabulary are one follows from the vocabulary alone. So a
    unit more or less changes at most k counts, each by one, and no other unit's choice. Its k words weigh 1/√k each: a
    vector of L2 norm at most 1, whose noisy sum over the units is a release of :class:`NoisyWords`. Every word of the
    vocabulary has a count and its noise, those that nobody says too, and a word outside of it has none.

    Units of several rows also give their number of rows, for the reference is to be counted in units of as many. That
    entry is at most √:data:`_ROWS_PART`, and the words share what is left of norm 1.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from doppel.errors import DataError
from doppel.files import read_lines
from doppel.privacy.histogram import Z, largest_noise
from doppel.privacy.release import NoisySums
from doppel.text.words import words_of

#: Public English word forms, the rarest first, without function words: ``python -m models.base.words`` made it.
ENGLISH = Path(__file__).with_name("words.txt.gz")
#: A word is shown that is said so many times as often as in the reference, with 95 % confidence.
TIMES = 3.0
#: Rows of a unit that are read, the first ones; and the part of the squared norm that goes to their number.
MOST_ROWS, _ROWS_PART = 64, 0.04
#: The bin of that number; no word.
_ROWS = "(rows)"


@dataclass(frozen=True)
class NoisyWords(NoisySums):
    """How many units give each word, with noise; the module argues the sensitivity."""

    kind: ClassVar[str] = "gaussian_words"


@dataclass(frozen=True)
class Word:
    """A word that nobody expected.

    Attributes:
        word: It.
        share: Of the units that give it: at least so many say it.
        low: So many give it at least; with 95 % confidence that is true of all words at once.
        high: Upper end of its own 95 % confidence interval.
        reference: Share of the reference's units that say it.
        forms: What is counted as it: itself, then other forms.
    """

    word: str
    share: float
    low: float
    high: float
    reference: float
    forms: tuple[str, ...]


@dataclass(frozen=True)
class Found:
    """What a release shows.

    Attributes:
        words: The most frequent first.
        least: Share of the units that a word which the reference never says needs to be shown, on average.
        least_half_noise: The same under half the noise.
        least_twice_reference: The same with a reference of twice as many texts.
        num_words: That are counted.
        rows_per_unit: Rows in which a unit of the reference was counted.
    """

    words: tuple[Word, ...]
    least: float
    least_half_noise: float
    least_twice_reference: float
    num_words: int
    rows_per_unit: int


def read_vocabulary(path: Path) -> list[str]:
    """Read words, one a line, ``.gz`` too.

    Raises:
        DataError: A line is none, or a word stands there twice.
    """
    found: dict[str, None] = {}
    for number, line in read_lines(path, ".txt"):
        word = line.strip()
        if words_of(word) != [word] or word in found:
            raise DataError("give one word a line, in lower case and once, such as: taxi", about=f"{path}:{number}")
        found[word] = None
    if not found:
        raise DataError(f"{path} has no word: give one a line, such as: taxi")
    return [*found]


def forms_of(vocabulary: Sequence[str]) -> dict[str, list[str]]:
    """Return the words that are counted, and of each its forms in the vocabulary, the word itself first.

    A word and its regular plural are one, called by the form that is commoner: the later one.
    """
    place = {word: n for n, word in enumerate(vocabulary)}
    singular: dict[str, str] = {}
    for word in sorted(vocabulary, key=len):  # a plural is longer, and none of a plural
        ends = [word[:-1]] if word.endswith("s") and not word.endswith("ss") else []
        ends += [word[:-2]] if word.endswith(("ses", "xes", "zes", "ches", "shes")) else []
        ends += [word[:-3] + "y"] if word.endswith("ies") else []
        if found := [end for end in ends if len(end) > 2 and end in place and end not in singular]:
            singular[word] = max(found, key=place.__getitem__)
    groups: dict[str, list[str]] = defaultdict(list)
    for word in vocabulary:
        groups[singular.get(word, word)].append(word)
    return {group[-1]: group[::-1] for group in groups.values()}


class UnexpectedWords:
    """The rule by which a unit gives words, and what their noisy counts tell.

    Args:
        vocabulary: Public words. Of words that equally many texts of the reference say, the earlier is given.
        reference: Public texts, in their order.
        per_unit: k, words of a unit.
        has_rows: Whether a unit may have several rows.
    """

    def __init__(self, vocabulary: Sequence[str], reference: Sequence[str], per_unit: int, has_rows: bool) -> None:
        self._forms = forms_of(vocabulary)
        self._word = {form: word for word, forms in self._forms.items() for form in forms}
        self._reference = [self._said(text) for text in reference]
        said = Counter(word for words in self._reference for word in words)
        place = {word: n for n, word in enumerate(vocabulary)}
        self._rank = {word: (said[word], place[forms[-1]]) for word, forms in self._forms.items()}
        self._per_unit, self._has_rows = per_unit, has_rows
        self._weight = math.sqrt((1.0 - _ROWS_PART * has_rows) / per_unit)

    @property
    def bins(self) -> list[str]:
        """What is counted."""
        return [*self._rank, *([_ROWS] if self._has_rows else [])]

    def _said(self, text: str) -> frozenset[str]:
        return frozenset(self._word[form] for form in words_of(text) if form in self._word)

    def vectors(self, rows: Iterable[tuple[str, str]]) -> Iterator[tuple[str, dict[str, float]]]:
        """Yield what each unit gives, of L2 norm at most 1: a function of its own texts.

        Args:
            rows: Unit and text of each row.
        """
        texts: dict[str, list[str]] = defaultdict(list)
        for unit, text in rows:
            texts[unit].append(text)
        for unit, own in texts.items():
            read = own[:MOST_ROWS]
            known = frozenset[str]().union(*map(self._said, read))
            given = dict.fromkeys(sorted(known, key=self._rank.__getitem__)[: self._per_unit], self._weight)
            if self._has_rows:
                given[_ROWS] = math.sqrt(_ROWS_PART) * len(read) / MOST_ROWS
            yield unit, given

    def found(self, sums: Mapping[str, float], num_units: int, noise_multiplier: float) -> Found:
        """Return the words that stand out of the noise and of the reference: post-processing of a release.

        With 95 % confidence no word that nobody says stands out: the threshold follows from the number of words. So
        does the lower end of an interval, for words are shown because they are large, and their noise with them. The
        reference is taken to say each word in one unit more than it does, since what is rare in it is known badly.

        Args:
            sums: As :class:`NoisyWords` draws them.
            num_units: N.
            noise_multiplier: σ.
        """
        deviation = noise_multiplier / self._weight / num_units
        rows = 1
        if self._has_rows:  # rather too many, which shows less
            mean = (sums[_ROWS] + noise_multiplier) / math.sqrt(_ROWS_PART) * MOST_ROWS / num_units
            rows = min(MOST_ROWS, max(1, math.ceil(mean)))
        units = [frozenset().union(*self._reference[i : i + rows]) for i in range(0, len(self._reference), rows)]
        said = Counter(word for words in units for word in words)
        noise = largest_noise(len(self._rank)) * deviation
        shown = []
        for word in self._rank:
            share, reference = sums[word] / self._weight / num_units, said[word] / len(units)
            if share > noise and share - Z * deviation > TIMES * (said[word] + 1) / len(units):
                high = min(1.0, share + Z * deviation)
                shown.append(Word(word, min(1.0, share), share - noise, high, reference, tuple(self._forms[word])))
        shown.sort(key=lambda word: (-word.share, word.word))

        def least(noise_part: float, times_reference: int) -> float:
            rarest = TIMES / (times_reference * len(units))  # of a word that the reference never says
            return max(noise_part * noise, noise_part * Z * deviation + rarest)

        return Found(tuple(shown), least(1, 1), least(0.5, 1), least(1, 2), len(self._rank), rows)
