"""Tokenised turns in flat arrays, grouped into privacy units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from datamodules.codec import Codec
from datamodules.turn import Turn

_CHUNK = 2_000
_PROGRESS_FROM = 5_000


@dataclass(frozen=True)
class EncodedTurns:
    """Token ids of many turns; row r is ``ids[offsets[r]:offsets[r + 1]]``.

    A row is a turn. One longer than the codec's ``max_length`` keeps its place, but as a separator and an end of text
    without loss.

    Attributes:
        ids: Token ids of all rows, one after the other, int32.
        offsets: Where each row starts, and the end of the last, int64 [num_rows + 1].
        num_prompt: Leading ids without loss of each row, int32 [num_rows].
        unit_index: Unit of each row, numbered by first appearance, int32 [num_rows].
    """

    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]
    num_prompt: NDArray[np.int32]
    unit_index: NDArray[np.int32]

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.num_prompt)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each row."""
        return np.diff(self.offsets)

    @property
    def num_over_long(self) -> int:
        """Rows that were too long, and so have no loss. Private: not to be logged."""
        return int((self.lengths == self.num_prompt).sum())

    def row(self, index: int) -> NDArray[np.int32]:
        """Token ids of a row."""
        return self.ids[self.offsets[index] : self.offsets[index + 1]]


def encode_turns(turns: Sequence[Turn], codec: Codec) -> EncodedTurns:
    """Tokenise turns in batches, with a progress bar when there are many."""
    unit_index: dict[str, int] = {}
    units = np.array([unit_index.setdefault(turn.unit, len(unit_index)) for turn in turns], dtype=np.int32)
    rows: list[NDArray[np.int32]] = []
    num_prompt: list[int] = []
    with tqdm(total=len(turns), desc="tokenising", unit="turn", disable=len(turns) <= _PROGRESS_FROM) as progress:
        for start in range(0, len(turns), _CHUNK):
            chunk = list(turns[start : start + _CHUNK])
            for encoded in codec.encode_all(chunk):
                is_over_long = len(encoded.input_ids) > codec.max_length
                rows.append(
                    np.array([codec.bos_id, codec.eos_id] if is_over_long else encoded.input_ids, dtype=np.int32)
                )
                num_prompt.append(2 if is_over_long else encoded.num_prompt)
            progress.update(len(chunk))
    return EncodedTurns(
        ids=np.concatenate(rows) if rows else np.zeros(0, dtype=np.int32),
        offsets=np.cumsum([0, *map(len, rows)], dtype=np.int64),
        num_prompt=np.array(num_prompt, dtype=np.int32),
        unit_index=units,
    )
