"""Weights of turns, from the file to the micro-batch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from encoded_rows import Ids, encoded, rows_of
from hypothesis import given, settings
from hypothesis import strategies as st

from datamodules.codec import Codec
from datamodules.encoded_turns import EncodedTurns, encode_turns
from datamodules.loading import load_encoded
from datamodules.logical_batches import AllTurns, EncodedUnits, LogicalBatches
from datamodules.readers import read_turns
from doppel.errors import DataError

pytestmark = pytest.mark.filterwarnings("ignore:NOT PRIVATE")

WriteLines = Callable[..., str]


def test_a_weight_is_read_and_cached_and_one_by_default(write_lines: WriteLines, codec: Codec) -> None:
    lines = [{"utterance": f"call {i}", "parse": "(Call)"} for i in range(3)]
    lines[1]["weight"] = 0.25  # type: ignore[assignment]
    path = write_lines(lines)
    assert [turn.weight for turn in read_turns(path, "utterance")] == [1, 0.25, 1]
    for _ in range(2):  # built, then from the cache
        weights = load_encoded(path, codec, "utterance").weights
        assert weights is not None and weights.dtype == np.float32
        assert weights.tolist() == [1, 0.25, 1]
    plain = load_encoded(write_lines([{**line, "weight": 1} for line in lines], "plain.jsonl"), codec, "utterance")
    assert plain.weights is None


@pytest.mark.parametrize("weight", [-0.1, 1.5, "half", True, float("nan"), float("inf")])
def test_a_weight_that_is_none_is_told_with_its_line(write_lines: WriteLines, weight: object) -> None:
    good = {"utterance": "hello"}
    path = write_lines([good, {**good, "weight": weight}])
    with pytest.raises(DataError, match=r"data.jsonl:2: 'weight' is no number in \[0, 1\]"):
        read_turns(path, "utterance")


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=8), is_fixed=st.booleans(), data=st.data())
def test_the_weight_of_a_unit_is_the_mean_of_its_rows_in_the_step(
    sizes: list[int], is_fixed: bool, data: st.DataObject
) -> None:
    """Row r has the weight r / 64, so that a unit's rows tell its weight; a unit filled in has no loss."""
    owners = [unit for unit, size in enumerate(sizes) for _ in range(size)]
    lengths = [data.draw(st.integers(2, 20)) for _ in owners]
    turns = encoded(lengths, owners)
    weights = np.arange(len(owners), dtype=np.float32) / 64
    turns = EncodedTurns(turns.ids, turns.offsets, turns.num_prompt, turns.unit_index, weights)
    batches = LogicalBatches(EncodedUnits(turns), Ids(), 60, 3, seed=1, fixed_shapes=is_fixed)  # type: ignore[arg-type]
    batch = batches.make(0, list(range(len(sizes))), 5.0)
    found = [weight for mb in batch.micro_batches for weight in mb.weights.tolist()]  # type: ignore[union-attr]
    for rows, weight in zip(rows_of(batch), found, strict=True):
        if any(rows):
            assert weight == pytest.approx(np.mean([row[0] - 100 for row in rows]) / 64)
        assert 0 <= weight <= 1
    for mb in batch.micro_batches:
        assert mb.weights is not None and mb.weights.shape == (mb.num_units,)


def test_evaluation_and_units_without_weights_have_none(dialogues: str, codec: Codec) -> None:
    turns = encode_turns(read_turns(dialogues, "dialogue"), codec)
    batch = LogicalBatches(EncodedUnits(turns), codec, 500, 4).make(0, [0, 1, 5], 3.0)
    assert [mb.weights for mb in batch.micro_batches] == [None] * len(batch.micro_batches)
    assert AllTurns(turns, codec, 500)[0].micro_batches[0].weights is None


def test_a_weighted_file_moves_between_the_units_unharmed(tmp_path: Path) -> None:
    record = {"utterance": "hi", "parse": None, "unit": "u", "domain": None, "weight": 0.5}
    path = tmp_path / "turns.jsonl"
    path.write_text(json.dumps(record) + "\n")
    assert [turn.weight for turn in read_turns(str(path), "user")] == [0.5]
    assert torch.tensor(read_turns(str(path), "utterance")[0].weight).item() == 0.5
