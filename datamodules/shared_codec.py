"""The text format of one model that writes trees, and utterances given a tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from datamodules.codec import Codec, Encoded
from datamodules.turn import Turn


@dataclass
class SharedCodec(Codec):
    """Writes two examples for each turn: ``<bos> " tree" <eos>``, then ``" tree" <bos> " utterance" <eos>``.

    They are exactly the examples of a model p(y) and of a model p(x|y). What stands before ``<bos>`` tells them apart:
    nothing, or a tree. Build it with source ``parse`` and target ``utterance``, which prompts and samples are read as.

    Formal guarantees:
        Both rows are functions of one turn, and carry the unit of this turn; the rows of a turn are never separated. So
        clipping the mean gradient of all rows of a unit bounds what both tasks learn from this unit, in one step, by C.
    """

    rows_per_turn: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self._tree = Codec(self.tokenizer, None, "parse", self.max_length, self.linearisation)

    def encode_all(self, turns: list[Turn]) -> list[Encoded]:
        """Encode many turns: the tree of the first, its pair, the tree of the second, …"""
        pairs = zip(self._tree.encode_all(turns), super().encode_all(turns), strict=True)
        return [example for pair in pairs for example in pair]

    def fingerprint(self) -> str:
        """Digest of everything that the ids depend on, for cache keys."""
        return f"{super().fingerprint()}-shared"
