"""Tokenised turns in flat arrays, by row and by privacy unit."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from datamodules.reading.example import Example
from datamodules.text_format import Encoded, TextFormat
from doppel.garbage import no_collection

_CHUNK = 2_000


@dataclass(frozen=True)
class EncodedExamples:
    """Token ids of many turns; row r is ``ids[offsets[r]:offsets[r + 1]]``.

    A row is a turn. One longer than the text format's ``max_length`` keeps its place, but as a separator and an end of
    text without loss; or it is cut, where that is asked for (:func:`encode_examples`).

    Attributes:
        ids: Token ids of all rows, one after the other, int32.
        offsets: Where each row starts, and the end of the last, int64 [num_rows + 1].
        num_prompt: Leading ids without loss of each row, int32 [num_rows].
        unit_index: Unit of each row, numbered by first appearance, int32 [num_rows].
        pad_id: What a batch fills up its rows with.
        longest: Tokens of the longest row that the model takes.
        constant_row: Token ids of a row without content, such as fills up a shape: those of a row that is too long.
    """

    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]
    num_prompt: NDArray[np.int32]
    unit_index: NDArray[np.int32]
    pad_id: int
    longest: int
    constant_row: tuple[int, ...]

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.num_prompt)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each row."""
        return np.diff(self.offsets)

    @property
    def num_units(self) -> int:
        """Number of privacy units."""
        return len(self._starts) - 1

    def row(self, index: int) -> NDArray[np.int32]:
        """Return the token ids of a row."""
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    def rows_of(self, unit: int) -> NDArray[np.int64]:
        """Return the rows of a unit, in the order of the file."""
        return self._by_unit[self._starts[unit] : self._starts[unit + 1]]

    def costs(self, max_rows_per_unit: int) -> NDArray[np.int64]:
        """Return the most padded tokens of each unit in a step: longest row times rows, [num_units]; private."""
        longest = np.maximum.reduceat(self.lengths[self._by_unit], self._starts[:-1])
        return longest * np.minimum(np.diff(self._starts), max_rows_per_unit)

    @cached_property
    def _by_unit(self) -> NDArray[np.int64]:
        """Rows, those of a unit one after the other."""
        return np.argsort(self.unit_index, kind="stable")

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        """Where each unit starts among them, and the end of the last."""
        return np.concatenate([[0], np.cumsum(np.bincount(self.unit_index))])


@no_collection()
def encode_examples(turns: Sequence[Example], text_format: TextFormat, truncate: bool = False) -> EncodedExamples:
    """Tokenise turns in batches. Some thousand take a second, and nothing is kept on disk.

    Formal guarantees:
        Whether a row is too long, and where it is cut, is a function of this row and the public ``max_length``. A row
        stays one row of its unit, in its place, whose gradient is clipped with the unit's. So what a unit can
        contribute to a step is bounded by C as before, and rows of others stay what they were.

    Args:
        turns: The turns.
        text_format: Text format of the model.
        truncate: Cut an utterance that is too long at ``max_length`` in place of leaving the row without loss. Such a
            row has no end of text: it teaches how a text begins, not that it ends there. Prompts are never cut, and
            trees neither, for the beginning of a tree is none: where one of them alone fills the row, it has no loss.
    """
    unit_index: dict[str, int] = {}
    units = np.array([unit_index.setdefault(turn.unit, len(unit_index)) for turn in turns], dtype=np.int32)
    ids, lengths, num_prompt = array("i"), array("q", [0]), array("i")
    for start in range(0, len(turns), _CHUNK):
        for encoded in text_format.encode_all(turns[start : start + _CHUNK]):
            is_too_long = len(encoded.input_ids) > text_format.max_length
            row = _shortened(encoded, text_format, truncate) if is_too_long else encoded
            ids.extend(row.input_ids)
            lengths.append(len(row.input_ids))
            num_prompt.append(row.num_prompt)
    return EncodedExamples(
        ids=np.frombuffer(ids, dtype=np.int32),
        offsets=np.cumsum(lengths, dtype=np.int64),
        num_prompt=np.frombuffer(num_prompt, dtype=np.int32),
        unit_index=units,
        pad_id=text_format.pad_id,
        longest=text_format.max_length,
        constant_row=(text_format.bos_id, text_format.eos_id),
    )


def _shortened(row: Encoded, text_format: TextFormat, truncate: bool) -> Encoded:
    """A row that is too long: cut, or without loss."""
    if truncate and text_format.target == "utterance" and row.num_prompt < text_format.max_length:
        return Encoded(row.input_ids[: text_format.max_length], row.num_prompt)
    return Encoded([text_format.bos_id, text_format.eos_id], 2)
