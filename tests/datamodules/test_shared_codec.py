"""Two rows for each turn: those of p(y) and of p(x|y), never separated."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from datamodules.codec import Codec, SharedCodec
from datamodules.dialogue_data_module import DialogueDataModule
from datamodules.encoded_turns import encode_turns
from datamodules.loading import load_encoded
from datamodules.logical_batches import AllTurns, EncodedUnits, LogicalBatches
from datamodules.readers import read_turns
from datamodules.turn import Field, Turn

pytestmark = pytest.mark.filterwarnings("ignore:NOT PRIVATE")


@pytest.fixture
def shared(tokenizer: object) -> SharedCodec:
    return SharedCodec(tokenizer, "parse", "utterance", 64)


def test_the_rows_are_those_of_the_two_models(dialogues: str, tokenizer: object, shared: SharedCodec) -> None:
    turns = read_turns(dialogues, "dialogue")
    found = encode_turns(turns, shared)
    trees = encode_turns(turns, Codec(tokenizer, None, "parse", 64))
    pairs = encode_turns(turns, Codec(tokenizer, "parse", "utterance", 64))
    assert (len(found), found.rows_per_turn) == (2 * len(turns), 2)
    for turn in range(len(turns)):
        for row, expected in ((2 * turn, trees), (2 * turn + 1, pairs)):
            np.testing.assert_array_equal(found.row(row), expected.row(turn))
            assert found.num_prompt[row] == expected.num_prompt[turn]
            assert found.unit_index[row] == expected.unit_index[turn]
    assert found.row(0)[0] == shared.bos_id != found.row(1)[0], "what stands before the separator tells the tasks apart"


def test_each_model_has_cache_entries_of_its_own(
    dialogues: str, tokenizer: object, shared: SharedCodec, cache: Path
) -> None:
    codecs = [shared, Codec(tokenizer, "parse", "utterance", 64), Codec(tokenizer, None, "parse", 64)]
    for _ in range(2):
        sizes = [(len(e), e.rows_per_turn) for e in (load_encoded(dialogues, c, "dialogue") for c in codecs)]
    num_turns = len(read_turns(dialogues, "dialogue"))
    assert sizes == [(2 * num_turns, 2), (num_turns, 1), (num_turns, 1)]
    assert len(list(cache.glob("*.npz"))) == 3


def test_an_over_long_pair_leaves_its_tree_and_both_rows_stay(dialogues: str, tokenizer: object) -> None:
    short = SharedCodec(tokenizer, "parse", "utterance", 30)
    found = encode_turns(read_turns(dialogues, "utterance"), short)
    lost = found.num_prompt == found.lengths
    assert found.num_over_long == lost.sum() > 0
    assert (lost[0::2] <= lost[1::2]).all() and (lost[0::2] < lost[1::2]).any()
    assert max(found.lengths) <= 30


def test_a_unit_is_represented_by_whole_turns_within_the_budget(dialogues: str, shared: SharedCodec) -> None:
    turns = encode_turns(read_turns(dialogues, "dialogue"), shared)
    units = EncodedUnits(turns)
    chosen: Counter[int] = Counter()
    for seed in range(40):
        batches = LogicalBatches(units, shared, 200, 4, seed=seed)
        rows = batches._choose(0, 5)  # six turns, twelve rows
        assert len(rows) == 4
        assert [rows[0] + 1, rows[2] + 1] == rows[1::2] and all(row % 2 == 0 for row in rows[::2])
        chosen.update(rows[::2])
    assert len(chosen) == 6, "every turn is chosen at times"
    batch = batches.make(0, list(range(len(units))), 20.0)
    assert sum(mb.num_units for mb in batch.micro_batches) == len(units)
    for mb in batch.micro_batches:
        assert mb.rows_per_unit in (2, 4)
        assert mb.input_ids.numel() <= 200 or mb.num_units == 1


def test_validation_covers_both_rows_of_every_turn(dialogues: str, shared: SharedCodec) -> None:
    turns = encode_turns(read_turns(dialogues, "utterance"), shared)
    for limit, expected in ((None, len(turns)), (7, 14)):
        dataset = AllTurns(turns, shared, 200, limit)
        assert sum(dataset[i].num_units for i in range(len(dataset))) == expected


@pytest.mark.parametrize(
    ("unit", "wanted", "rows"), [("utterance", None, 2), ("dialogue", None, 8), ("dialogue", 3, 6)]
)
def test_the_data_module_tells_the_rows_that_a_step_uses(
    dialogues: str, shared: SharedCodec, unit: str, wanted: int | None, rows: int
) -> None:
    data = DialogueDataModule(dialogues, unit=unit, batch_size=8, max_turns_per_unit=wanted)  # type: ignore[arg-type]
    data.codec = shared
    data.setup("fit")
    assert data.max_rows_per_unit == rows
    used = [mb.rows_per_unit for batch in data.train_dataloader() for mb in batch.micro_batches]
    assert max(used) <= rows and all(n % 2 == 0 for n in used)


def test_with_a_prefix_every_prompt_names_what_is_to_be_written(tokenizer: object) -> None:
    turn = Turn("hi", "(Yield (Today))", "u", domain="Weather")
    cases: dict[tuple[Field | None, Field], str] = {
        (None, "utterance"): "utterance",
        (None, "parse"): "parse",
        ("domain", "utterance"): "utterance: Weather",
    }
    for (source, target), prompt in cases.items():
        codec = Codec(tokenizer, source, target, 64, task_prefix=True)
        example = codec.encode(turn)
        start = example.input_ids[: example.num_prompt]
        assert start == [*codec.tokenize([prompt])[0], codec.bos_id]
        assert start == codec.encode_prompt(None if source is None else turn.domain)
        assert codec.decode(example.input_ids[example.num_prompt :]) == codec.text(turn, target)
        bare = replace(codec, task_prefix=False)
        assert bare.fingerprint() != codec.fingerprint() and bare.text_format() != codec.text_format()
    shared = SharedCodec(tokenizer, "parse", "utterance", 64, task_prefix=True)
    tree, pair = shared.encode_all([turn])
    assert tree == Codec(tokenizer, None, "parse", 64, task_prefix=True).encode(turn)
    assert pair == Codec(tokenizer, "parse", "utterance", 64, task_prefix=True).encode(turn)
