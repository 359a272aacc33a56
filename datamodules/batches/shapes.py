"""The few public shapes of micro-batches: rows, length and labelled width, from numbers of few binary digits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

#: Binary digits that a row's number of steps keeps when it is rounded up: at most a quarter more, 7 % on average.
_LENGTH_DIGITS = 3
#: Those that a micro-batch's number of units keeps: at most an eighth more, 3 % on average.
_UNIT_DIGITS = 4
#: Steps of the shortest shape; a request has some 15.
_LEAST_STEPS = 7


class RowShape(NamedTuple):
    """What the micro-batch of a unit has of the unit itself.

    Attributes:
        length: Tokens that each row is padded to.
        num_labels: Positions with a loss that each row has room for, at the head.
    """

    length: int
    num_labels: int


@cache
def row_shape(num_tokens: int, num_labels: int, longest: int) -> RowShape:
    """Round a unit's longest row up to a public shape.

    A model takes one step less than a row has tokens, so it is steps that have few binary digits: 7, 8, 10, 12, 14, 16,
    20 and so on. Labels fill all steps, or at most half of them, as those behind a prompt often do.

    Formal guarantees:
        A function of this unit alone and of public numbers, whoever else is sampled: so is the part of the padding,
        and the width of the head, that a unit's rows are computed with.

    Args:
        num_tokens: Of the unit's longest row.
        num_labels: Of the unit's row that has most.
        longest: Tokens of the longest row that the model takes; public.
    """
    steps = max(min(_up(max(num_tokens - 1, _LEAST_STEPS), _LENGTH_DIGITS), longest - 1), num_tokens - 1, 1)
    half = -(-steps // 2)
    return RowShape(steps + 1, half if num_labels <= half else steps)


def unit_counts(
    num_units: int, rows_per_unit: int, length: int, max_tokens: int, max_units: int | None
) -> Iterator[int]:
    """Cut units of one row shape into micro-batches; yield the number of units of each, constant ones included.

    All are full but the last, and a full one has the largest number of at most four binary digits that the bounds
    allow. The last one's units are rounded up likewise: 15, 16, 18, 20 and so on.

    Formal guarantees:
        What a full micro-batch looks like is a function of a row's own length and of public numbers. How many there
        are, and the number of units of the last one, follow how many units of this shape were sampled; the sum does
        not, for what fills it up is constant and has the weight 0.

    Args:
        num_units: Units sampled.
        rows_per_unit: Rows of each.
        length: Tokens of each row.
        max_tokens: Bound on rows times length; a single unit may pass it.
        max_units: Bound on units; None: none.
    """
    fit = max(max_tokens // (rows_per_unit * length), 1)
    full = _down(fit if max_units is None else min(fit, max_units), _UNIT_DIGITS)
    while num_units > 0:
        yield min(_up(num_units, _UNIT_DIGITS), full)
        num_units -= full


def _down(number: int, digits: int) -> int:
    """The largest number of so many binary digits, and zeros behind them, that is not larger."""
    zeros = max(number.bit_length() - digits, 0)
    return number >> zeros << zeros


def _up(number: int, digits: int) -> int:
    """The least one that is not smaller."""
    zeros = max(number.bit_length() - digits, 0)
    return -(-number >> zeros) << zeros
