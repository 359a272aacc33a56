"""Logical batches under a real trainer: Poisson, shuffled, resumed, on one rank and on two."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lightning.pytorch.loggers import CSVLogger

from datamodules.batches.encoded import encode_examples
from datamodules.dialogue_data_module import DialogueDataModule
from datamodules.reading.examples import read_examples
from datamodules.text_format import TextFormat
from doppel.errors import DataError
from tests.datamodules.recorder import Recorder, make_trainer, sums

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*seed.*"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
    pytest.mark.filterwarnings("ignore:.*validation_step.*"),
]


def module(path: str, **kwargs: Any) -> DialogueDataModule:
    defaults = {"unit": "dialogue", "batch_size": 4, "sampling_seed": 11, "max_tokens_per_micro_batch": 300}
    return DialogueDataModule(path, **{**defaults, **kwargs})


def train(path: str, text_format: TextFormat, max_steps: int, ckpt_path: str | None = None, **kwargs: Any) -> Recorder:
    recorder = Recorder(text_format)
    trainer_kwargs = kwargs.pop("trainer", {})
    trainer = make_trainer(max_steps=max_steps, **trainer_kwargs)
    trainer.fit(recorder, datamodule=module(path, **kwargs), ckpt_path=ckpt_path)
    recorder.saved = trainer  # type: ignore[assignment]
    return recorder


def test_what_the_privacy_callback_asks_for(dialogues: str, text_format: TextFormat) -> None:
    for effort, batch_size in ((1, 3), (4, 12)):  # what is told is what is drawn: an epoch has ceil(1 / q) steps
        data = module(dialogues, batch_size=3, effort=effort)
        data.text_format = text_format
        data.setup("fit")
        assert (data.num_units, data.unit, data.batch_size) == (20, "dialogue", batch_size)
        assert len(data.train_dataloader()) == math.ceil(20 / batch_size)
    assert len(data.data_fingerprint) == 64


def test_every_unit_is_drawn_with_probability_q_and_batches_may_be_empty(
    dialogues: str, text_format: TextFormat
) -> None:
    data = module(dialogues, batch_size=1, sampling_seed=5)
    data.text_format = text_format
    data.setup("fit")
    sampler, loader = data.poisson(20, 1, seed=5), data.train_dataloader()
    drawn: Counter[int] = Counter()
    sizes = []
    for step in range(3000):
        units = sampler.units_at(step)
        drawn.update(units)
        sizes.append(len(units))
        if step < 100:
            batch = loader.make(step)
            assert (batch.num_units, batch.expected_num_units) == (len(units), 1.0)
    # 3000 draws at q = 1/20: 150 a unit with a standard deviation of 12; sizes are Binomial(20, 1/20).
    assert (abs(np.array([drawn[u] for u in range(20)]) - 150) < 60).all()
    assert abs(np.mean(sizes) - 1) < 0.1
    assert abs(np.var(sizes) - 0.95) < 0.2
    assert 0 in sizes


@pytest.mark.parametrize("sampling", ["poisson", "shuffle"])
def test_interrupted_and_resumed_sees_the_batches_of_an_uninterrupted_run(
    dialogues: str, text_format: TextFormat, tmp_path: Path, sampling: str
) -> None:
    def run(max_steps: int, ckpt_path: str | None = None) -> Recorder:
        return train(dialogues, text_format, max_steps, ckpt_path, sampling=sampling)

    whole = run(13).train_batches
    assert [step for step, _, _ in whole] == list(range(13))
    first = run(7)  # in the middle of the second epoch of five steps
    path = tmp_path / "interrupted.ckpt"
    first.saved.save_checkpoint(path)  # type: ignore[union-attr]
    second = run(13, str(path))
    assert first.train_batches + second.train_batches == whole
    assert len({str(rows) for _, rows, _ in whole}) > 10, "batches differ from step to step"


def test_an_epoch_cut_short_goes_on_with_fresh_batches(dialogues: str, text_format: TextFormat) -> None:
    whole = train(dialogues, text_format, 12).train_batches
    cut = train(dialogues, text_format, 12, trainer={"limit_train_batches": 3}).train_batches
    assert cut == whole


def test_a_shuffled_epoch_holds_every_unit_once(dialogues: str, text_format: TextFormat) -> None:
    recorder = train(dialogues, text_format, 14, sampling="shuffle", batch_size=3, unit="utterance")
    turns = encode_examples(read_examples(dialogues, "utterance"), text_format)
    per_epoch = math.ceil(len(turns) / 3)
    data = module(dialogues, sampling="shuffle", batch_size=3, unit="utterance")
    data.text_format = text_format
    data.setup("fit")
    batches = list(data.train_dataloader())
    assert len(batches) == per_epoch
    assert sum((sums(b) for b in batches[:14]), []) == sum((rows for _, rows, _ in recorder.train_batches), [])
    assert sorted(sum((sums(b) for b in batches), [])) == sorted(int(turns.row(i).sum()) for i in range(len(turns)))
    assert [b.expected_num_units for b in batches] == [b.num_units for b in batches]


def test_sampling_does_not_follow_the_global_seed(
    dialogues: str, text_format: TextFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PL_GLOBAL_SEED", "1")
    runs = [train(dialogues, text_format, 5, sampling_seed=None).train_batches for _ in range(2)]
    assert runs[0] != runs[1]


def test_validation_and_test_read_their_own_files_and_say_whether_they_are_public(
    dialogues: str, text_format: TextFormat
) -> None:
    data = module(dialogues, val_path=dialogues, test_path=dialogues)
    recorder = Recorder(text_format)
    make_trainer(max_steps=5).fit(recorder, datamodule=data)
    turns = encode_examples(read_examples(dialogues, "utterance"), text_format)
    expected = sorted(int(turns.row(i).sum()) for i in range(len(turns)))
    assert sorted(sum(recorder.evaluated, [])) == expected
    recorder.evaluated = []
    make_trainer().test(recorder, datamodule=data, verbose=False)
    assert sorted(sum(recorder.evaluated, [])) == expected
    assert not any(batch.is_public for batch in data.val_dataloader())
    assert not any(batch.is_public for batch in data.test_dataloader())
    assert not any(batch.is_public for batch in data.train_dataloader())


def test_no_validation_file_means_no_validation(dialogues: str, text_format: TextFormat) -> None:
    assert train(dialogues, text_format, 5).evaluated == []


@pytest.mark.filterwarnings("ignore:NOT PRIVATE")
@pytest.mark.parametrize("sampling", ["poisson", "shuffle"])
@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_take_shares_of_the_batches_of_one_rank(
    dialogues: str, text_format: TextFormat, sampling: str, world_size: int
) -> None:
    def batches(rank: int, world_size: int) -> list[list[int]]:
        data = module(dialogues, batch_size=5, sampling=sampling, sampling_seed=3)
        data.text_format = text_format
        data.rank_and_world_size = lambda: (rank, world_size)  # type: ignore[method-assign]
        data.setup("fit")
        found = list(data.train_dataloader())
        assert all(batch.expected_num_units == 5 for batch in found)
        return [sums(batch) for batch in found]

    whole = batches(0, 1)
    parts = [batches(rank, world_size) for rank in range(world_size)]
    assert [sorted(itertools.chain(*shares)) for shares in zip(*parts, strict=True)] == [sorted(b) for b in whole]


def test_ranks_without_a_common_secret_are_refused(dialogues: str, text_format: TextFormat) -> None:
    data = module(dialogues, sampling_seed=None)
    data.text_format = text_format
    data.rank_and_world_size = lambda: (1, 2)  # type: ignore[method-assign]
    data.setup("fit")
    with pytest.raises(RuntimeError, match="sampling_seed"):
        data.train_dataloader()


@pytest.mark.ddp
@pytest.mark.parametrize("use_distributed_sampler", [True, False])
def test_lightning_leaves_the_samplers_of_two_processes_alone(
    dialogues: str, text_format: TextFormat, tmp_path: Path, use_distributed_sampler: bool
) -> None:
    recorder = Recorder(text_format, folder=tmp_path)
    trainer = make_trainer(devices=2, strategy="ddp_fork", max_steps=7, use_distributed_sampler=use_distributed_sampler)
    data = module(dialogues, sampling="shuffle", unit="utterance", batch_size=10, val_path=dialogues)
    trainer.fit(recorder, datamodule=data)
    ranks = [json.loads((tmp_path / f"rank{r}.json").read_text()) for r in range(2)]
    turns = encode_examples(read_examples(dialogues, "utterance"), text_format)
    every_turn = sorted(int(turns.row(i).sum()) for i in range(len(turns)))
    assert len(ranks[0]["train"]) == len(ranks[1]["train"]) == 7 == math.ceil(len(turns) / 10)
    assert sorted(s for r in ranks for _, rows, _ in r["train"] for s in rows) == every_turn
    assert sorted(s for r in ranks for rows in r["evaluated"] for s in rows) == every_turn


def test_a_unit_is_drawn_with_the_sampling_rate_however_many_rows_it_has(
    write_lines: Callable[..., str], text_format: TextFormat
) -> None:
    lines = [{"utterance": f"say {i}", "parse": "(Yield)", "unit": f"user-{min(i, 11)}"} for i in range(40)]
    limits: dict[str, Any] = {"batch_size": 4, "max_turns_per_unit": 3}
    data = module(write_lines(lines, "users.jsonl"), unit="user", unit_names="exact", **limits)
    data.text_format = text_format
    data.setup("fit")
    assert data.num_units == 12
    step = 0
    data.global_step = lambda: step  # type: ignore[method-assign]
    drawn: list[int] = []
    with_rows = {1: 0, 3: 0}
    while step < 900:
        for batch in data.train_dataloader():
            step += 1
            drawn.append(batch.num_units)
            for mb in batch.micro_batches:
                with_rows[mb.rows_per_unit] += mb.num_units
    # The user with 29 rows is drawn as often as any other: Binomial(900, 1/3) has a standard deviation of 14.
    assert abs(with_rows[3] - 300) < 5 * 14.2
    assert abs(with_rows[1] / 11 - 300) < 5 * 14.2 / 11**0.5
    assert sum(drawn) == with_rows[1] + with_rows[3] and len(set(drawn)) > 1


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"batch_size": 21}, "batch_size is 21.*20 units"),
        ({"limit_train_units": 3}, "batch_size is 4.*3 units"),
        ({"effort": 6}, "batch_size is 24.*20 units.*effort 1"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"max_turns_per_unit": 0}, "max_turns_per_unit is 0"),
    ],
)
def test_sizes_that_cannot_be(dialogues: str, text_format: TextFormat, kwargs: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError, match=says):
        data = module(dialogues, **kwargs)
        data.text_format = text_format
        data.setup("fit")


@pytest.mark.parametrize("stage", ["validate", "test"])
def test_nothing_to_evaluate_on(dialogues: str, text_format: TextFormat, stage: str) -> None:
    with pytest.raises(DataError, match="val_path" if stage == "validate" else "test_path"):
        getattr(make_trainer(), stage)(Recorder(text_format), datamodule=module(dialogues))


def test_resuming_in_mid_epoch_gives_no_warning(
    dialogues: str, text_format: TextFormat, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    first = train(dialogues, text_format, 3)
    first.saved.save_checkpoint(tmp_path / "a.ckpt")  # type: ignore[union-attr]
    train(dialogues, text_format, 5, str(tmp_path / "a.ckpt"))
    messages = [str(w.message) for w in recwarn]
    assert not [m for m in messages if "not resumable" in m or "across ranks is zero" in m]


def test_data_that_cannot_be_used_are_told_before_a_logger_opens(
    write_lines: Callable[..., str], text_format: TextFormat, tmp_path: Path
) -> None:
    class Opened(CSVLogger):
        @property
        def experiment(self) -> Any:
            raise AssertionError("the logger was opened")

    lines = [{"utterance": "yes", "parse": "(A)"}, {"utterance": "no"}]
    data = module(write_lines(lines, "own.jsonl"), unit="utterance", batch_size=1)
    with pytest.raises(DataError, match="'parse'") as refused:
        make_trainer(max_steps=1, logger=Opened(tmp_path)).fit(Recorder(text_format), datamodule=data)
    assert refused.value.about == f"{data.rows.path}:2"
