"""Sampled units become micro-batches: nothing lost, nothing doubled, within the budget."""

from __future__ import annotations

import copy
import pickle
from collections import Counter

import numpy as np
import pytest
import torch
from encoded_rows import encoded, num_without_loss, rows_of
from hypothesis import given, settings
from hypothesis import strategies as st

from datamodules.batches.batch import IGNORE_INDEX
from datamodules.batches.cut import LogicalBatches, all_examples
from datamodules.batches.encoded import encode_examples
from datamodules.reading.examples import read_examples
from datamodules.text_format import TextFormat

pytestmark = pytest.mark.filterwarnings("ignore:NOT PRIVATE")


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=12),
    budget=st.integers(1, 80),
    max_rows=st.integers(1, 6),
    max_units=st.none() | st.integers(1, 5),
    data=st.data(),
)
def test_every_sampled_unit_appears_once_with_its_rows(
    sizes: list[int], budget: int, max_rows: int, max_units: int | None, data: st.DataObject
) -> None:
    units = [u for u, size in enumerate(sizes) for _ in range(size)]
    lengths = [data.draw(st.integers(2, 20)) for _ in units]
    batches = LogicalBatches(encoded(lengths, units), budget, max_rows, 1, max_units)
    sampled = data.draw(st.lists(st.integers(0, len(sizes) - 1), unique=True))
    batch = batches.make(3, sampled, 5.0)

    assert batch.num_units == len(sampled) == len(rows_of(batch))
    assert batch.expected_num_units == 5.0
    seen: Counter[int] = Counter()
    for rows in rows_of(batch):
        owners = {units[row[0] - 100] for row in rows}
        assert len(owners) == 1
        (owner,) = owners
        seen[owner] += 1
        assert len(rows) == len({row[0] for row in rows}) == min(sizes[owner], max_rows)
        assert all(len(row) == lengths[row[0] - 100] for row in rows)
    assert seen == Counter(sampled)

    for mb in batch.micro_batches:
        num_rows, width = mb.input_ids.shape
        assert num_rows == mb.num_units * mb.rows_per_unit
        assert mb.rows_per_unit <= max_rows
        assert num_rows * width <= budget or mb.num_units == 1
        assert max_units is None or mb.num_units <= max_units
        assert (mb.labels[:, 0] == IGNORE_INDEX).all(), "the prompt has no loss"
        expected = mb.input_ids[:, 1:].masked_fill(mb.input_ids[:, 1:] == 0, IGNORE_INDEX)
        assert torch.equal(mb.labels[:, 1:], expected)


def test_sorting_inside_the_batch_removes_padding() -> None:
    lengths = [9, 49] * 20  # 8 and 48 steps
    batches = LogicalBatches(encoded(lengths, list(range(40))), 200, 1)
    batch = batches.make(0, list(range(40)), 40.0)
    tokens = sum(mb.input_ids.numel() for mb in batch.micro_batches)
    assert tokens == sum(lengths)
    widths = [mb.input_ids.shape[1] for mb in batch.micro_batches]
    assert widths == sorted(widths, reverse=True)


def test_an_empty_sample_has_no_micro_batch() -> None:
    batches = LogicalBatches(encoded([4], [0]), 200, 1)
    batch = batches.make(0, [], 1.0)
    assert (batch.micro_batches, batch.num_units, batch.expected_num_units) == ([], 0, 1.0)


def test_the_choice_of_rows_is_uniform_fresh_each_step_and_blind_to_content() -> None:
    def chosen(lengths: list[int], seed: int | None) -> list[int]:
        batches = LogicalBatches(encoded(lengths, [0] * 6), 10_000, 2, seed=seed)
        return [row[0] - 100 for step in range(900) for row in rows_of(batches.make(step, [0], 1.0))[0]]

    rows = chosen([5] * 6, seed=7)
    assert rows == chosen([5, 9, 2, 30, 4, 4], seed=7)
    counts = np.bincount(rows, minlength=6)
    assert counts.sum() == 1800
    # Each count is Binomial(900, 1/3): 300 with a standard deviation of 14.
    assert (abs(counts - 300) < 75).all()
    assert chosen([5] * 6, None) != chosen([5] * 6, None), "without a seed nobody can repeat the choice"


def test_over_long_turns_have_zero_loss_but_count_as_units(dialogues: str, tokenizer: object) -> None:
    short = TextFormat(tokenizer, "parse", "utterance", 30)
    turns = encode_examples(read_examples(dialogues, "utterance"), short)
    batch = LogicalBatches(turns, 500, 1).make(0, range(turns.num_units), 1.0)
    without_loss = sum(int((mb.labels == IGNORE_INDEX).all(1).sum()) for mb in batch.micro_batches)
    assert without_loss == num_without_loss(turns) > 0
    assert batch.num_units == len(turns)
    assert max(mb.input_ids.shape[1] for mb in batch.micro_batches) <= 30


@pytest.mark.parametrize("limit", [None, 7])
def test_validation_covers_every_turn_once(dialogues: str, text_format: TextFormat, limit: int | None) -> None:
    turns = encode_examples(read_examples(dialogues, "utterance"), text_format)
    dataset = all_examples(turns, 200, limit, is_public=True)
    rows = [row for i in range(len(dataset)) for unit in rows_of(dataset[i]) for row in unit]
    assert sorted(rows) == sorted(turns.row(i).tolist() for i in range(limit or len(turns)))
    assert all(dataset[i].is_public and len(dataset[i].micro_batches) == 1 for i in range(len(dataset)))


def test_the_secret_behind_the_choice_of_rows_is_in_no_copy() -> None:
    batches = LogicalBatches(encoded([4], [0]), 200, 1)
    for leak in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="secret"):
            leak(batches)


def test_the_choice_of_rows_under_a_test_seed_stays_what_it_was() -> None:
    """Runs with a fixed seed are repeated bit for bit."""
    batches = LogicalBatches(encoded([4] * 9, [0] * 9), 200, 3, seed=7)
    chosen = [[row[0] - 100 for row in rows_of(batches.make(step, [0], 1.0))[0]] for step in (0, 5)]
    assert chosen == [[4, 7, 8], [2, 4, 5]]
