"""Prompts: every sample once, similar lengths together, nothing twice after an interruption."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest

from datamodules.batches.batch import PromptBatch
from datamodules.prompt_data_module import PromptDataModule
from datamodules.text_format import TextFormat
from doppel.errors import DataError
from tests.datamodules.recorder import Recorder, make_trainer

TREES = [f"(Find {'(Deep ' * (i % 5)}{i}{')' * (i % 5)})" for i in range(10)]


@pytest.fixture
def prompts(write_lines: Callable[..., str]) -> str:
    return write_lines([{"utterance": None, "parse": tree, "stage": "trees"} for tree in TREES], "trees.jsonl")


def batches(data: PromptDataModule, text_format: TextFormat, rank: int = 0, world_size: int = 1) -> list[PromptBatch]:
    data.text_format = text_format
    data.rank_and_world_size = lambda: (rank, world_size)  # type: ignore[method-assign]
    data.setup("predict")
    return list(data.predict_dataloader())


def test_prompts_are_used_in_turn_and_again_from_the_start(prompts: str, text_format: TextFormat) -> None:
    found = batches(PromptDataModule(prompts, num_samples=25, batch_size=4), text_format)
    pairs = {i: p for b in found for i, p in zip(b.indices, b.prompts, strict=True)}
    assert pairs == {i: TREES[i % 10] for i in range(25)}
    for batch in found:
        assert batch.input_ids == [text_format.encode_prompt(p) for p in batch.prompts]
        assert len(batch.indices) <= 4
    lengths = [len(ids) for b in found for ids in b.input_ids]
    assert lengths == sorted(lengths, reverse=True)


@pytest.mark.parametrize(("num_samples", "total"), [(None, 10), (3, 3)])
def test_number_of_samples(prompts: str, text_format: TextFormat, num_samples: int | None, total: int) -> None:
    data = PromptDataModule(prompts, num_samples=num_samples)
    found = batches(data, text_format)
    assert sorted(i for b in found for i in b.indices) == list(range(total))
    assert data.num_total == total


def test_an_unconditional_model_needs_no_file(tokenizer: object) -> None:
    text_format = TextFormat(tokenizer, None, "parse", 64)
    found = batches(PromptDataModule(num_samples=5, batch_size=2), text_format)
    assert [len(b.indices) for b in found] == [2, 2, 1]
    assert all(ids == [text_format.bos_id] for b in found for ids in b.input_ids)
    assert all(p is None for b in found for p in b.prompts)


def test_what_is_done_is_not_sampled_again(prompts: str, text_format: TextFormat) -> None:
    data = PromptDataModule(prompts, num_samples=25, batch_size=4)
    data.done = {0, 3, 17, 24, 99}
    found = batches(data, text_format)
    assert sorted(i for b in found for i in b.indices) == sorted(set(range(25)) - data.done)
    assert all(p == TREES[i % 10] for b in found for i, p in zip(b.indices, b.prompts, strict=True))
    data.done = set(range(25))
    assert list(data.predict_dataloader()) == []


def test_ranks_share_the_samples(prompts: str, text_format: TextFormat) -> None:
    shares = [
        {i for b in batches(PromptDataModule(prompts, 25, batch_size=4), text_format, rank, 3) for i in b.indices}
        for rank in range(3)
    ]
    assert set.union(*shares) == set(range(25))
    assert sum(len(s) for s in shares) == 25
    # A pool larger than a rank's share does not leave ranks idle.
    assert all(len(batches(PromptDataModule(prompts, 25), text_format, rank, 3)) == 1 for rank in range(3))


def test_under_a_trainer(prompts: str, text_format: TextFormat) -> None:
    recorder = Recorder(text_format)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make_trainer().predict(recorder, datamodule=PromptDataModule(prompts, batch_size=4), return_predictions=False)
    assert sorted(i for b in recorder.predicted for i in b.indices) == list(range(10))
    assert not [w for w in caught if "batch indices" in str(w.message)]


def test_a_label_may_be_the_prompt(write_lines: Callable[..., str], tokenizer: object) -> None:
    path = write_lines([{"label": "weather", "kind": "rain"}])
    text_format = TextFormat(tokenizer, "label", "utterance", 64)
    assert batches(PromptDataModule(path), text_format)[0].prompts == ["weather"]


@pytest.mark.parametrize(
    ("lines", "place"),
    [
        (["{"], ":1"),
        ([{"parse": "(A)"}, {"utterance": "x"}], ":2"),
        ([[1]], ":1"),
        ([], ""),
    ],
)
def test_a_bad_prompts_file(
    write_lines: Callable[..., str], text_format: TextFormat, lines: list[object], place: str
) -> None:
    path = write_lines(lines, "trees.jsonl")
    with pytest.raises(DataError, match=path) as refused:
        batches(PromptDataModule(path), text_format)
    assert refused.value.about == (path + place if place else "")


def test_prompts_and_model_must_go_together(prompts: str, text_format: TextFormat, tokenizer: object) -> None:
    with pytest.raises(DataError, match=r"\.missing"):
        batches(PromptDataModule(prompts + ".missing"), text_format)
    with pytest.raises(DataError, match="prompts_path is not set"):
        batches(PromptDataModule(num_samples=3), text_format)
    with pytest.raises(DataError, match="the model takes no prompt"):
        batches(PromptDataModule(prompts), TextFormat(tokenizer, None, "parse", 64))
    with pytest.raises(DataError, match="num_samples"):
        PromptDataModule()
