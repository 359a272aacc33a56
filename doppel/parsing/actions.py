"""A parse as the sequence of actions that builds it, and the pieces of an utterance that actions copy."""

from __future__ import annotations

import re
from typing import NamedTuple

_PIECE = re.compile(r"\s*(?:\w+|[^\w\s])|\s+")


class Actions(NamedTuple):
    """The action sequence of one parse; the three lists are equally long.

    Attributes:
        ids: Actions, numbered by `doppel.parsing.ActionVocabulary`; the first is BOS, the last END.
        pointers: Position of the node at the other end of an arc (where its node action stands, ``<str>`` for
            a string, 0 for the virtual root); -1 for every other action.
        copies: Index of the source piece that a COPY takes; -1 for every other action.
    """

    ids: list[int]
    pointers: list[int]
    copies: list[int]


def split_source(utterance: str) -> list[str]:
    """Cut an utterance into words and single punctuation marks, each with the white space before it.

    ``"".join(pieces) == utterance``; white space at the end of the text is a piece of its own.
    """
    return _PIECE.findall(utterance)
