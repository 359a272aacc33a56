"""The pieces of an utterance that a parser reads and may copy."""

from __future__ import annotations

import re

_PIECE = re.compile(r"\s*(?:\w+|[^\w\s])|\s+")


def split_source(utterance: str) -> list[str]:
    """Cut an utterance into words and single punctuation marks, each with the white space before it.

    Nothing is lost, so that copying pieces one after the other copies the utterance.

    Args:
        utterance: Any text, possibly empty.

    Returns:
        Pieces with ``"".join(pieces) == utterance``. White space at the end of the text is a piece of its own.
    """
    return _PIECE.findall(utterance)
