"""From sampled unit indices to a logical batch: rows chosen, sorted by length, cut into micro-batches."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datamodules.batches.batch import IGNORE_INDEX, LogicalBatch, MicroBatch
from datamodules.batches.encoded import EncodedExamples
from datamodules.batches.loader import Batches
from datamodules.batches.shapes import RowShape, row_shape, unit_counts
from doppel.privacy.secret import Secret


class LogicalBatches:
    """Makes logical batches of sampled units.

    A unit with more than ``max_rows_per_unit`` rows is represented by that many (:func:`representatives`). Units with
    equally many rows of one shape share micro-batches, whose shapes are few and public (:func:`fixed_shapes`).

    Args:
        turns: The rows.
        max_tokens_per_micro_batch: Bound on rows times padded length of a micro-batch; a single unit may pass it.
        max_rows_per_unit: Rows that represent a unit, at most. Public.
        seed: For tests only; None takes the secret from the operating system's entropy.
        max_units_per_micro_batch: Bound on its units, whose gradients a clipper may hold one by one; None: none.
    """

    def __init__(
        self,
        turns: EncodedExamples,
        max_tokens_per_micro_batch: int,
        max_rows_per_unit: int,
        seed: int | None = None,
        max_units_per_micro_batch: int | None = None,
    ) -> None:
        self.turns = turns
        self.max_tokens_per_micro_batch = max_tokens_per_micro_batch
        self.max_units_per_micro_batch = max_units_per_micro_batch
        self.max_rows_per_unit = max_rows_per_unit
        self._secret = Secret(None if seed is None else hashlib.sha256(b"%d" % seed).digest())

    def make(self, step: int, sampled: Sequence[int], expected_num_units: float) -> LogicalBatch:
        """Build the logical batch of sampled units; without micro-batches if there are none.

        Args:
            step: Number of the optimiser step, for the choice of rows.
            sampled: Units of this rank.
            expected_num_units: Divisor of the summed gradient, over all ranks.
        """
        bounds = self.max_tokens_per_micro_batch, self.max_units_per_micro_batch
        micro_batches = [
            micro_batch(self.turns, part, shape, num_units)
            for group in representatives(self._secret, step, sampled, self.turns.rows_of, self.max_rows_per_unit)
            for part, shape, num_units in fixed_shapes(self.turns, group, *bounds)
        ]
        return LogicalBatch(micro_batches, len(sampled), expected_num_units)


def all_examples(
    turns: EncodedExamples, max_tokens_per_batch: int, limit: int | None = None, is_public: bool = False
) -> Batches[LogicalBatch]:
    """Return all turns, each row a unit of its own, sorted by length and cut by token budget: for validation and test.

    Args:
        turns: The rows.
        max_tokens_per_batch: Bound on rows times padded length of a batch, a logical one with a single micro-batch.
        limit: Use only the first turns, at most this many.
        is_public: Whether metrics of these turns may leave the process.
    """
    num_rows = len(turns) if limit is None else min(limit, len(turns))
    parts = list(cut(turns, [[row] for row in range(num_rows)], max_tokens_per_batch))

    def make(number: int) -> LogicalBatch:
        part = parts[number]
        return LogicalBatch([micro_batch(turns, part)], len(part), float(len(part)), is_public)

    return Batches(make, len(parts))


def representatives(
    secret: Secret, step: int, units: Iterable[int], rows_of: Callable[[int], Any], limit: int
) -> list[list[list[int]]]:
    """Choose the rows that represent units in a step: all of a unit, or ``limit`` of them, uniformly.

    Formal guarantees:
        The choice of rows is a function of (secret, step, unit) and not of the content, so the clipped contribution of
        a unit stays bounded whatever it holds, and the choices of the other units have the same law with it and
        without.

    Returns:
        The rows of each unit, with units of equally many rows in one group, the fewest first.
    """
    groups: dict[int, list[list[int]]] = {}
    for unit in units:
        rows = rows_of(unit)
        places: Iterable[int] = range(len(rows))
        if len(rows) > limit:
            places = sorted(secret.stream("rows", step, unit).sample(range(len(rows)), limit))
        chosen = [int(rows[place]) for place in places]
        groups.setdefault(len(chosen), []).append(chosen)
    return [group for _, group in sorted(groups.items())]


def fixed_shapes(
    turns: EncodedExamples, units: list[list[int]], max_tokens: int, max_units: int | None = None
) -> Iterator[tuple[list[list[int]], RowShape, int]]:
    """Cut units into micro-batches of few public shapes, the longest rows first.

    Formal guarantees:
        Units share a micro-batch if their own rows have one shape (:func:`~datamodules.batches.shapes.row_shape`). So
        what a unit is padded to, and in full micro-batches which kernels run, no other unit decides; only the last
        micro-batch of a shape has a number of rows that follows how many there are
        (:func:`~datamodules.batches.shapes.unit_counts`). What fills it up is public: rows of begin and end of text
        without a label, whose loss has the weight 0. Their gradient is exactly 0, and so is what they add to any sum.

    Args:
        turns: The rows.
        units: Rows of each unit, equally many.
        max_tokens: Bound on rows times length; a single unit may pass it.
        max_units: Bound on units; None: none.

    Yields:
        Units of a micro-batch, the shape of their rows, and the number of units with those that fill it up.
    """
    shapes: dict[RowShape, list[list[int]]] = {}
    chosen = np.asarray(units, dtype=np.int64).reshape(len(units), -1)
    num_tokens, num_labels = turns.lengths[chosen], turns.lengths[chosen] - turns.num_prompt[chosen]
    for rows, *own in zip(units, num_tokens.max(1).tolist(), num_labels.max(1).tolist(), strict=True):
        shapes.setdefault(row_shape(*own, turns.longest), []).append(rows)
    for shape, alike in sorted(shapes.items(), reverse=True):
        start = 0
        for num_units in unit_counts(len(alike), len(alike[0]), shape.length, max_tokens, max_units):
            yield alike[start : start + num_units], shape, num_units
            start += num_units


def cut(turns: EncodedExamples, units: list[list[int]], max_tokens: int) -> Iterator[list[list[int]]]:
    """Sort units by their longest row, longest first, and cut them where rows times length pass the budget.

    For losses that are looked at and not clipped. A part has one unit or more. One that holds an eighth of the budget
    also ends before a unit shorter than 0.8 of its longest, or a logical batch of few parts would be padded much. All
    units have equally many rows.
    """
    lengths = turns.lengths
    longest = [max(int(lengths[row]) for row in rows) for rows in units]
    order = sorted(range(len(units)), key=longest.__getitem__, reverse=True)
    start = 0
    while start < len(order):
        num_rows, width = len(units[order[start]]), longest[order[start]]
        stop = min(start + max(1, max_tokens // (num_rows * width)), len(order))
        enough = start + math.ceil(max_tokens / (8 * num_rows * width))
        stop = next((i for i in range(enough, stop) if longest[order[i]] < 0.8 * width), stop)
        yield [units[i] for i in order[start:stop]]
        start = stop


def micro_batch(
    turns: EncodedExamples, units: Sequence[Sequence[int]], shape: RowShape | None = None, num_units: int | None = None
) -> MicroBatch:
    """Pad the rows of units, equally many for each, on the right; prompt, separator and padding carry no loss.

    Args:
        turns: The rows.
        units: Rows of each unit.
        shape: What rows are padded to; None: the longest of them.
        num_units: Number of units with the constant ones behind them; None: there are none.
    """
    rows, rows_per_unit = [row for unit in units for row in unit], len(units[0])
    num_constant = 0 if num_units is None else num_units * rows_per_unit - len(rows)
    contents: list[Sequence[int] | NDArray[np.int32]] = [turns.row(row) for row in rows]
    contents += [turns.constant_row] * num_constant
    num_prompt = [*turns.num_prompt[rows].tolist(), *[len(turns.constant_row)] * num_constant]
    input_ids, labels = pad(contents, num_prompt, turns.pad_id, None if shape is None else shape.length)
    weights = torch.ones(len(contents))
    weights[len(rows) :] = 0.0
    num_labels = None if shape is None else shape.num_labels
    return MicroBatch(input_ids, labels, len(contents) // rows_per_unit, rows_per_unit, weights, num_labels)


def pad(
    rows: Sequence[Sequence[int] | NDArray[np.int32]],
    num_prompt: Sequence[int],
    pad_id: int,
    length: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return token ids padded on the right and labels without the prompts, both int64 [rows, length].

    Args:
        rows: Token ids of each row.
        num_prompt: Leading ids without loss of each.
        pad_id: What fills up.
        length: Of each row; None: that of the longest.
    """
    shape = len(rows), length or max(map(len, rows))
    input_ids, labels = np.full(shape, pad_id, dtype=np.int64), np.full(shape, IGNORE_INDEX, dtype=np.int64)
    for place, (row, start) in enumerate(zip(rows, num_prompt, strict=True)):
        input_ids[place, : len(row)] = row
        labels[place, start : len(row)] = row[start:]
    return torch.from_numpy(input_ids), torch.from_numpy(labels)
