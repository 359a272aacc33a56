"""Normal forms: as what texts, words and characters are compared. All that differ, and why.

| definition | one are | for |
|---|---|---|
| :func:`caseless` | cases, and the ways to write a character (NFKC) | what the next ones begin with |
| :func:`one_line` | likewise, and runs of blanks; punctuation counts | names that a text holds as they are |
| :func:`normalise` | likewise, and all punctuation; apostrophes are left out | copies of a text, which trivial edits do not hide |
| :func:`.occurrences.fold` | cases, characters, hyphens and blanks, and what nobody sees | names that a text may write in many ways |
| :func:`key_of` | the same of a word, without the punctuation at its ends and ``'s`` | words that rules hide |
| ``datamodules.reading.utterances`` | letters and digits alone, as bytes, or letters without masks | digests of files of any length |
| ``datamodules.reading.units`` | numbers, telephone numbers and addresses, too | names of users |
"""  # noqa: E501

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_NOT_WORD = re.compile(r"[\W_]+")
_ENDS = re.compile(r"^[\W_]+|(['’]s)?[\W_]*$", re.IGNORECASE)
_APOSTROPHES = dict.fromkeys("'`´‘’‛ʹʻʼ′՚׳＇", "'")
_HYPHENS = dict.fromkeys("_−⁃·‧・･", "-")
_NO_APOSTROPHES = str.maketrans("", "", "".join(_APOSTROPHES))
_OTHERS = _APOSTROPHES | _HYPHENS | {"ı": "i"}
#: Beside control and format characters, what is not seen or may be left out: fillers, selectors, vowel points, tatweel.
_INVISIBLE = re.compile(
    "[\u034f\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0640\u064b-\u065f\u0670\u115f\u1160\u17b4\u17b5"
    "\u180b-\u180f\u3164\uffa0\ufe00-\ufe0f\U000e0100-\U000e01ef]"
)


def caseless(text: str) -> str:
    """Return a text in one case, with compatible forms of a character merged (NFKC)."""
    return unicodedata.normalize("NFKC", text).casefold()


def one_line(text: str) -> str:
    """Normalise case and runs of blanks."""
    return " ".join(caseless(text).split())


def normalise(text: str) -> str:
    """Normalise case, punctuation and whitespace, so that trivial edits do not hide a copy."""
    return _NOT_WORD.sub(" ", caseless(text.translate(_NO_APOSTROPHES))).strip()


def key_of(word: str) -> str:
    """Return a word for comparison, without punctuation at its ends and ``'s``; empty without letter and digit."""
    return _ENDS.sub("", unicodedata.normalize("NFC", "".join(map(fold_character, word))))


@lru_cache(maxsize=1 << 16)
def fold_character(char: str) -> str:
    """Normalise a character for comparison, by itself; none for one that does not count."""
    if char.isspace():
        return " "
    if char in _OTHERS:
        return _OTHERS[char]
    if unicodedata.category(char) == "Pd":
        return "-"
    text = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", char).casefold()).replace("i\u0307", "i")
    return "".join(_OTHERS.get(sign, sign) for sign in text if not is_invisible(sign))


def is_invisible(char: str) -> bool:
    """Return whether a character is not seen, or may be left out."""
    return unicodedata.category(char) in ("Cc", "Cf") or _INVISIBLE.match(char) is not None
