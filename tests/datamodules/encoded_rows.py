"""Encoded rows for the tests of batches."""

from __future__ import annotations

import numpy as np

from datamodules.batches.batch import LogicalBatch
from datamodules.batches.encoded import EncodedExamples


def encoded(lengths: list[int], units: list[int], longest: int = 512) -> EncodedExamples:
    """Rows whose tokens are all 100 + the row's number, with a prompt of one token."""
    ids = np.repeat(np.arange(len(lengths), dtype=np.int32) + 100, lengths)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ones = np.ones(len(lengths), dtype=np.int32)
    return EncodedExamples(ids, offsets, ones, np.array(units, dtype=np.int32), 0, longest, (0, 0))


def num_without_loss(turns: EncodedExamples) -> int:
    """Rows that were too long and were not cut."""
    return int((turns.lengths == turns.num_prompt).sum())


def rows_of(batch: LogicalBatch) -> list[list[list[int]]]:
    """Ids of every row of every unit, without the padding, whose id is 0, and without constant units."""
    units = []
    for mb in batch.micro_batches:
        rows = [ids[ids != 0].tolist() for ids in mb.input_ids]
        units += [rows[i : i + mb.rows_per_unit] for i in range(0, len(rows), mb.rows_per_unit)]
    return [rows for rows in units if any(rows)]
