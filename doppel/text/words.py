"""What a word and a stem are: all definitions of this code, and why they differ.

| definition | a word is | for |
|---|---|---|
| ``text.split()`` | what stands between blanks, punctuation with it | lengths in words, and what redaction hides: so nothing is left of a text whose words are all hidden |
| :func:`words_of` | letters alone, in lower case, two or more; no mask | what is counted, shown to people, or asked for: unexpected words, topics, examples |
| :func:`tokens_of` | letters, digits and apostrophes within | mechanisms that replace each word: a number must not stay as it is |
| :func:`signs_of` | the same in any case, a mask, or a punctuation mark | an attacker, who reads all of it |
| :func:`pieces_of` | the same, with the white space before it | parsers that copy pieces: together they are the text |

How texts and words are compared, says :mod:`doppel.text.forms`.
"""  # noqa: E501

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snowballstemmer.basestemmer import BaseStemmer

#: What opens, closes or frames a request, and what is left of words with an apostrophe: it says nothing of a theme.
FRAME = (
    "am pm st nd rd th im ive id ill dont whats thats lets isnt cant let want like make have making having need got "
    "please new thing just really actually going does did oh don didn doesn haven wasn ve ll re hi hello hey thanks "
    "thank good morning sorry team help yes no ok okay"
)
_WORD, _MASK = re.compile(r"[^\W\d_]{2,}"), re.compile(r"\[\w+\]")
_TOKEN = re.compile(r"\w+(?:['’]\w+)*")
_SIGN = re.compile(r"\[?\w+(?:['’]\w+)?\]?|[^\w\s]")
_PIECE = re.compile(r"\s*(?:\w+|[^\w\s])|\s+")


def words_of(text: str) -> list[str]:
    """Return the words of a text, in lower case, without numbers and what redaction left of others."""
    return _WORD.findall(_MASK.sub(" ", text).lower())


def tokens_of(text: str) -> list[str]:
    """Return the words and numbers of a text, in lower case, with one kind of apostrophe."""
    return [word.replace("’", "'") for word in _TOKEN.findall(text.lower())]


def signs_of(text: str) -> list[str]:
    """Return the words, masks and punctuation marks of a text."""
    return _SIGN.findall(text)


def pieces_of(text: str) -> list[str]:
    """Cut a text into words and single punctuation marks, each with the white space before it.

    ``"".join(pieces) == text``; white space at the end of the text is a piece of its own.
    """
    return _PIECE.findall(text)


def stem_of(word: str) -> str:
    """Return what the forms of an English word have in common (Porter's second stemmer): ``meet`` of ``meetings``."""
    return str(_stemmer().stemWord(word))


@cache
def _stemmer() -> BaseStemmer:
    from snowballstemmer import stemmer

    return stemmer("english")
