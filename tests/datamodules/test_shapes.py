"""Shapes of micro-batches: few, public, and a unit's own."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from encoded_rows import encoded, rows_of
from hypothesis import given
from hypothesis import strategies as st

from datamodules.batches.cut import LogicalBatches
from datamodules.batches.shapes import row_shape, unit_counts


@given(st.integers(1, 600), st.data())
def test_a_row_fits_its_shape_which_is_hardly_larger(num_tokens: int, data: st.DataObject) -> None:
    longest = data.draw(st.integers(num_tokens, 600))
    num_labels = data.draw(st.integers(0, num_tokens - 1))
    shape = row_shape(num_tokens, num_labels, longest)
    assert num_tokens <= shape.length <= max(longest, 2)
    assert shape.length - 1 <= max(7, 1.25 * (num_tokens - 1))
    assert num_labels <= shape.num_labels <= shape.length - 1


def test_lengths_and_numbers_of_units_are_few() -> None:
    assert len({row_shape(n, m, 512) for n in range(1, 513) for m in range(n)}) <= 56
    assert len({count for n in range(1, 1000) for count in unit_counts(n, 1, 17, 2**20, None)}) <= 64


@given(
    st.integers(0, 3000), st.integers(1, 4), st.integers(2, 300), st.integers(1, 9000), st.none() | st.integers(1, 99)
)
def test_the_parts_hold_all_units_and_only_the_last_follows_their_number(
    num_units: int, rows_per_unit: int, length: int, max_tokens: int, max_units: int | None
) -> None:
    counts = list(unit_counts(num_units, rows_per_unit, length, max_tokens, max_units))
    full = next(unit_counts(10**9, rows_per_unit, length, max_tokens, max_units))
    assert full * rows_per_unit * length <= max_tokens or full == 1
    assert max_units is None or full <= max_units
    assert all(count == full for count in counts[:-1])
    rest = num_units - sum(counts[:-1])
    assert not counts or rest <= counts[-1] <= min(full, max(rest * 9 // 8, rest))


def test_one_unit_more_changes_the_shape_of_no_other_length() -> None:
    """Nor that of a full micro-batch."""

    def shapes(lengths: list[int]) -> Counter[tuple[int, ...]]:
        batch = LogicalBatches(encoded(lengths, list(range(len(lengths)))), 400, 1).make(0, range(len(lengths)), 1.0)
        return Counter((*mb.input_ids.shape, mb.num_labels or 0) for mb in batch.micro_batches)

    lengths = [9, 9, 12, 12, 12, 17, 30, 30, *[21] * 60]
    before = shapes(lengths)
    assert before[18, 21, 20] == 3, "full ones of 400 tokens"
    for new in (7, 9, 13, 17, 21, 28, 60):
        after = shapes([*lengths, new])
        own = row_shape(new, new - 1, 512).length
        assert {shape for shape in (before - after) + (after - before) if shape[1] != own} == set()
        assert after[18, 21, 20] == 3


@pytest.mark.parametrize("rows_per_unit", [1, 3])
def test_what_fills_a_shape_is_constant_and_weighs_nothing(rows_per_unit: int) -> None:
    units = list(itertools.chain.from_iterable([u] * rows_per_unit for u in range(17)))
    batch = LogicalBatches(encoded([5] * len(units), units), 10_000, 4).make(0, range(17), 17.0)
    (mb,) = batch.micro_batches
    assert (mb.num_units, batch.num_units, len(rows_of(batch))) == (18, 17, 17)
    assert mb.weights is not None and mb.weights.tolist() == [1.0] * 17 * rows_per_unit + [0.0] * rows_per_unit
    assert (mb.input_ids[-rows_per_unit:] == 0).all() and (mb.labels[-rows_per_unit:] == -100).all()


def test_no_row_is_longer_than_the_model_takes() -> None:
    batch = LogicalBatches(encoded([90, 83, 89], [0, 1, 2], longest=90), 400, 1).make(0, range(3), 3.0)
    assert {mb.input_ids.shape[1] for mb in batch.micro_batches} == {90}
