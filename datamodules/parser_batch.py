"""What the semantic parser trains on and is judged by, one batch at a time."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass
class ParserBatch:
    """Utterances with the oracle's actions, or with trees to compare with.

    Attributes:
        sources: Pieces of each utterance.
        ids: Actions [B, T], padded on the right; the rows may be none at all.
        pointers: Positions that arcs point to [B, T], elsewhere -1.
        copies: Pieces that are copied [B, T], elsewhere -1.
        num_actions: Actions to predict, over all ranks.
    """

    sources: list[list[str]]
    ids: Tensor
    pointers: Tensor
    copies: Tensor
    num_actions: int


@dataclass
class TurnBatch:
    """Turns to be parsed, and their trees.

    Attributes:
        utterances: What users said.
        trees: What it means.
        actions: The oracle's actions of those turns that the vocabulary can express; None if there are none.
    """

    utterances: list[str]
    trees: list[str]
    actions: ParserBatch | None
