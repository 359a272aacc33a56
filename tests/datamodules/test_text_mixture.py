"""Blocks of public text for the base model."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from datamodules.batches.batch import IGNORE_INDEX
from datamodules.text_format import TextFormat
from doppel.errors import DataError
from doppel.grammar import generate
from models.base.text_mixture import TextMixtureDataModule, pack


@given(st.lists(st.integers(1, 12), max_size=60), st.integers(4, 10))
def test_examples_are_packed_whole(lengths: list[int], block_length: int) -> None:
    examples = [[10 + i] * length for i, length in enumerate(lengths)]
    blocks, used = pack(examples, block_length, pad_id=0)
    assert blocks.shape == (len(used), block_length)
    found = []
    for row, length in zip(blocks.tolist(), used.tolist(), strict=True):
        assert set(row[length:]) <= {0}
        values, counts = torch.unique_consecutive(torch.tensor(row[:length]), return_counts=True)
        found += list(zip(values.tolist(), counts.tolist(), strict=True))
    assert sorted(found) == [(10 + i, n) for i, n in enumerate(lengths) if n <= block_length]


@pytest.fixture
def data(text_format: TextFormat, tmp_path: Path) -> TextMixtureDataModule:
    path = tmp_path / "utterances.txt.gz"
    path.write_bytes(gzip.compress(b"".join(b"utterance number %d\n" % i for i in range(50))))
    mixture = TextMixtureDataModule(
        str(path),
        grammar_turns=40,
        batch_size=4,
        block_length=256,
        max_utterances=30,
        num_val_pairs=10,
        tree_share=0.5,
        val_batch_size=4,
    )
    mixture.text_format = TextFormat(text_format.tokenizer, "parse", "utterance", 512)
    mixture.setup("fit")
    return mixture


def test_an_epoch_holds_utterances_trees_and_pairs(data: TextMixtureDataModule) -> None:
    text_format = data.require_text_format()
    seen: list[str] = []
    for batch in data.train_dataloader():
        assert batch.is_public
        (mb,) = batch.micro_batches
        assert mb.input_ids.shape == (batch.num_units, 256)
        assert batch.num_units == mb.num_units == batch.expected_num_units <= 4
        is_padding = mb.input_ids == text_format.pad_id
        assert torch.equal(mb.labels, mb.input_ids.masked_fill(is_padding, IGNORE_INDEX))
        for ids, skip in zip(mb.input_ids, is_padding, strict=True):
            text = text_format.tokenizer.decode(ids[~skip], clean_up_tokenization_spaces=False)
            seen += text.split("<eos>")[:-1]
    turns = [
        t for t in generate(40, seed=1, skew=1.0) if len(text_format.tokenize([f"{t.parse} {t.utterance}"])[0]) < 240
    ]
    assert sum(s.startswith("<bos> utterance number") for s in seen) == 30
    pairs = [f" {t.parse}<bos> {t.utterance}" for t in turns]
    assert pairs
    assert set(pairs) <= set(seen)
    alone = [s for s in seen if s.startswith("<bos> (")]
    assert 0 < len(alone) <= 20


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_slots_stand_for_names_in_a_share_of_the_pairs_and_in_their_trees_alone(
    text_format: TextFormat, share: float
) -> None:
    mixture = TextMixtureDataModule(
        grammar_turns=400, block_length=512, num_val_pairs=1, tree_share=1, slot_share=share
    )
    mixture.text_format = TextFormat(text_format.tokenizer, "parse", "utterance", 512)
    mixture.setup("fit")
    ids = torch.cat([batch.micro_batches[0].input_ids.flatten() for batch in mixture.train_dataloader()])
    text = text_format.tokenizer.decode(ids[ids != mixture.text_format.pad_id], clean_up_tokenization_spaces=False)
    people = re.findall(r'PersonName\.apply "([^"]*)"', text)
    assert len(people) > 100
    with_slots = sum(re.fullmatch(r"person[1-9]", name) is not None for name in people) / len(people)
    assert abs(with_slots - share) < 0.15 * (0 < share < 1) + 1e-9


def test_epochs_are_shuffled_by_step_and_repeatable(data: TextMixtureDataModule) -> None:
    loader = data.train_dataloader()
    first = [b.micro_batches[0].input_ids for b in loader]
    again = [b.micro_batches[0].input_ids for b in loader]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    num_steps = len(loader)
    data.global_step = lambda: num_steps  # type: ignore[method-assign]
    second = [b.micro_batches[0].input_ids for b in data.train_dataloader()]
    assert not torch.equal(torch.cat(first), torch.cat(second))
    assert torch.equal(torch.cat(first).sum(0).sum(), torch.cat(second).sum(0).sum())


@pytest.mark.parametrize("conditional", [True, False])
def test_validation_is_held_out_and_has_loss_on_the_utterance_alone(
    data: TextMixtureDataModule, conditional: bool
) -> None:
    text_format = data.require_text_format()
    held_out = TextMixtureDataModule(
        None, grammar_turns=40, num_val_pairs=10, val_conditional=conditional, val_batch_size=4
    )
    held_out.text_format = text_format
    held_out.setup("validate")
    trained = {(t.utterance, t.parse) for t in generate(40, seed=1, skew=1.0)}
    fresh = {(t.utterance, t.parse) for t in generate(5000, seed=2, skew=1.0)} - trained
    utterances = {u for u, _ in fresh}
    num_rows = 0
    for batch in held_out.val_dataloader():
        assert batch.is_public
        (mb,) = batch.micro_batches
        for ids, labels in zip(mb.input_ids, mb.labels, strict=True):
            num_rows += 1
            assert text_format.decode(labels[labels != IGNORE_INDEX].tolist()) in utterances
            prompt = ids[(labels == IGNORE_INDEX) & (ids != text_format.pad_id)].tolist()
            assert prompt[-1] == text_format.bos_id
            assert (len(prompt) > 1) == conditional
    assert 0 < num_rows <= 10


def test_bad_arguments(text_format: TextFormat, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="tree_share is 2"):
        TextMixtureDataModule(None, tree_share=2)
    missing = TextMixtureDataModule(str(tmp_path / "none.txt"), grammar_turns=5)
    missing.text_format = text_format
    with pytest.raises(DataError, match=r"none\.txt"):
        missing.setup("fit")
