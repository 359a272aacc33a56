"""A parse as the sequence of actions that builds it."""

from __future__ import annotations

from typing import NamedTuple


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
