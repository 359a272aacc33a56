"""The distinct utterances of a file under a key, in place of its text."""

from __future__ import annotations

import hashlib
import re
import secrets
import string
from array import array
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from datamodules.reading.example import Example
from doppel.grammar.slot_table import SHIPPED, slot_table
from doppel.text.forms import caseless

#: Letters of an utterance that two people seldom say alike: some seven words of English.
LONG = 30

_KEY = secrets.token_bytes(32)
_DIGEST = 8
_LOWER = bytes.maketrans(string.ascii_uppercase.encode(), string.ascii_lowercase.encode())
_NOT_LETTERS = bytes(set(range(128)) - set(string.ascii_letters.encode()))
_NOT_ALNUM = bytes(set(_NOT_LETTERS) - set(string.digits.encode()))
_NO_LETTERS, _NO_ALNUM = re.compile(r"[\W\d_]+"), re.compile(r"[\W_]+")
#: Lengths, in letters, up to which lines are alike enough for one chance.
_LENGTHS = (10, 15, 20, 25, LONG, 40, 60)
#: What people and programs put in the place of a name.
_MASKS = re.compile(
    r"\[[^][]{1,40}\]|<[^<>]{1,40}>|\{[^{}]{1,40}\}|\*{2,}|_{2,}|█+"
    r"|\b(?:[A-Z]+_)*(?:NAME|PERSON|REDACTED|MASK(?:ED)?|ANONYMI[SZ]ED|PII|X{3,})(?:_?\d+)?\b"
    rf"|(?i:(?<![a-z0-9])(?:{'|'.join(slot_table(SHIPPED).kinds.names)})[1-9][0-9]*(?![a-z0-9]))"
)
#: What a text has that has a mask; looked for first, for it takes a fifth of the time.
_HAS_MASK = re.compile(r"[\[<{█]|\*\*|__|[A-Z]{3}|[a-zA-Z][1-9]")
_BETWEEN = b"\0"

#: What this process has read: of each state of a file (or path of the hub), by the columns that it was read with.
known: dict[Hashable, Utterances] = {}


class Form(NamedTuple):
    """A text as it is compared.

    Attributes:
        letters: Its letters in one case, as UTF-8; those of a text with masks in parts, which masks stand between.
        num_letters: How many.
        is_masked: Whether something stands in the place of a name.
    """

    letters: bytes
    num_letters: int
    is_masked: bool

    @property
    def digest(self) -> bytes:
        """Its keyed digest, 8 bytes."""
        return _digest(self.letters)

    @property
    def parts(self) -> list[str]:
        """The letters before, between and behind its masks."""
        return self.letters.decode().split(_BETWEEN.decode())


@dataclass(frozen=True)
class Utterances:
    """Keyed digests of the distinct utterances of a file, and how many lines say each.

    An utterance is its letters and digits, in one case (:func:`plain`): white space, punctuation and the form of a
    character make no difference. One without any is none. Its form is without digits and masks (:func:`form_of`).

    Formal guarantees:
        The key is drawn anew by every process and leaves it as little as the digests do: nothing is written, logged or
        sent to another process. Without the key a digest tells nothing of a text. All is blind to the order of lines.

    Attributes:
        short: Digests of 64 bits of what has fewer than :data:`LONG` letters and digits, sorted, uint64 [num_short].
        long: Likewise of the others, uint64 [num_long].
        forms: Likewise of the distinct forms, uint64 [num_forms].
        lengths: Letters of each form, [num_forms].
        counts: Lines that say each form, [num_forms].
        num_masked: How many forms have masks.
    """

    short: NDArray[np.uint64]
    long: NDArray[np.uint64]
    forms: NDArray[np.uint64]
    lengths: NDArray[np.int64]
    counts: NDArray[np.int64]
    num_masked: int

    @classmethod
    def of(cls, texts: Iterable[str]) -> Utterances:
        """Take the utterances of texts."""
        gathered = _Gathered()
        for text in texts:
            gathered.add(text)
        return gathered.utterances()

    def __len__(self) -> int:
        """Number of distinct utterances."""
        return len(self.short) + len(self.long)

    @cached_property
    def chances(self) -> NDArray[np.float64]:
        """How likely a line of each length is to be said in the other half of the file, of one cut in two at random.

        An expectation over all halves, so no lines are drawn: of an utterance that n lines say, each line has the
        others in its own half with probability 2⁻⁽ⁿ⁻¹⁾.
        """
        length, n = np.digitize(self.lengths, _LENGTHS), self.counts.astype(float)
        again = np.bincount(length, n * (1 - 2.0 ** -(n - 1)), minlength=len(_LENGTHS) + 1)
        return np.asarray(again / np.maximum(np.bincount(length, n, minlength=len(_LENGTHS) + 1), 1))

    def chance_of(self, lengths: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the chance of lines of some lengths."""
        return np.asarray(self.chances[np.digitize(lengths, _LENGTHS)])


class _Gathered:
    """Digests and lengths of lines, as they are read."""

    def __init__(self) -> None:
        self._short, self._long, self._forms = bytearray(), bytearray(), bytearray()
        self._lengths, self._masked = array("L"), set[bytes]()

    def add(self, text: str) -> None:
        said = plain(text)
        if not said:
            return
        is_long = len(said) >= LONG and len(said.decode()) >= LONG
        whole = _digest(said)
        (self._long if is_long else self._short).extend(whole)
        form = form_of(text)
        if form.num_letters:
            digest = whole if form.letters == said else form.digest
            self._forms += digest
            self._lengths.append(form.num_letters)
            if form.is_masked:
                self._masked.add(digest)

    def utterances(self) -> Utterances:
        short, long, forms = (
            np.frombuffer(bytes(part), dtype=np.uint64) for part in (self._short, self._long, self._forms)
        )
        distinct, first, counts = np.unique(forms, return_index=True, return_counts=True)
        lengths = np.array(self._lengths, dtype=np.int64)[first]
        return Utterances(np.unique(short), np.unique(long), distinct, lengths, counts, len(self._masked))


def plain(text: str) -> bytes:
    """Normalise a text to letters and digits in one case, as UTF-8, with compatible forms merged (NFKC)."""
    if text.isascii():
        return text.encode("ascii").translate(_LOWER, _NOT_ALNUM)
    return _NO_ALNUM.sub("", caseless(text)).encode()


def form_of(text: str) -> Form:
    """Return the form of a text: its letters in one case, with compatible forms of a character merged (NFKC).

    Masks, such as ``[NAME]``, ``***`` and ``person1``, are left out, and so are digits.
    """
    if _HAS_MASK.search(text) is None:
        said = _letters(text)
        return Form(said, len(said) if said.isascii() else len(said.decode()), False)
    parts = [_letters(part) for part in _MASKS.split(text)]
    num_letters = sum(len(part) if part.isascii() else len(part.decode()) for part in parts)
    return Form(_BETWEEN.join(parts), num_letters, len(parts) > 1)


def words_of(text: str) -> list[str]:
    """Return the words of a text, whose letters together are those of :func:`form_of`."""
    return _NO_LETTERS.sub(" ", caseless(text)).split()


def remembering(turns: Iterable[Example], key: Hashable) -> Iterator[Example]:
    """Yield the turns of a file, as they are read; once all are, their utterances are known under a key.

    It costs some four microseconds a turn, beside the 28 or so of reading one.
    """
    gathered = _Gathered()
    for turn in turns:
        gathered.add(turn.utterance)
        yield turn
    known[key] = gathered.utterances()


def _digest(said: bytes) -> bytes:
    return hashlib.blake2b(said, digest_size=_DIGEST, key=_KEY).digest()


def _letters(text: str) -> bytes:
    if text.isascii():
        return text.encode("ascii").translate(_LOWER, _NOT_LETTERS)
    return _NO_LETTERS.sub("", caseless(text)).encode()
