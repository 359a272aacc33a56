"""An ordinary dataset as logical batches: whole units, coins of their own, one law on every number of ranks."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from datamodules.unit_data_module import UnitDataModule
from doppel.errors import DataError

pytestmark = pytest.mark.filterwarnings("ignore:NOT PRIVATE")
USERS = [row % 60 if row % 5 else 0 for row in range(200)]  # user 0 has forty-odd rows, others two to four


class Noisy(Dataset[Any]):
    """Rows that are drawn anew at each reading, by all three generators."""

    def __init__(self, num: int = 200) -> None:
        self.num = num

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, row: int) -> tuple[int, float]:
        return row, float(torch.rand(())) + np.random.rand() + random.random()


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(10))


def module(dataset: Any = None, **kwargs: Any) -> UnitDataModule:
    given = {"unit": "user", "unit_of": USERS, "collate": list, "batch_size": 12, "sampling_seed": 1}
    return UnitDataModule(Noisy() if dataset is None else dataset, **(given | kwargs))


def on_rank(data: UnitDataModule, rank: int, world_size: int, step: int = 0) -> UnitDataModule:
    trainer: Any = SimpleNamespace(global_rank=rank, world_size=world_size, global_step=step)
    trainer.strategy = SimpleNamespace(broadcast=lambda tensor: tensor)
    data.trainer = trainer
    return data


def rows(batch: Any) -> list[Any]:
    return [row for part in batch.micro_batches for row in part.rows]


def test_units_of_a_dataset_are_whole_and_bounded() -> None:
    data = module(max_rows_per_unit=3, max_rows_per_micro_batch=10, batch_size=None)
    num_units = len(set(USERS))
    assert (data.num_units, data.batch_size) == (num_units, max(1, num_units // 20)), "q = B/N counts units, not rows"
    for batch in module(max_rows_per_unit=3, max_rows_per_micro_batch=10).train_dataloader():
        assert batch.expected_num_units == 12.0
        assert sum(part.num_units for part in batch.micro_batches) == batch.num_units
        for part in batch.micro_batches:
            owners = [USERS[row] for row, _ in part.rows]
            assert len(owners) == part.num_units * part.rows_per_unit <= 12 and part.rows_per_unit <= 3
            starts = range(0, len(owners), part.rows_per_unit)
            assert all(len(set(owners[i : i + part.rows_per_unit])) == 1 for i in starts)
            assert len(set(owners)) == part.num_units


def test_each_unit_is_drawn_as_often_whatever_it_holds() -> None:
    drawn, steps = Counter[int](), 0
    for seed in range(50):
        for batch in module(sampling_seed=seed).train_dataloader():
            drawn.update({USERS[row] for row, _ in rows(batch)})
            steps += 1
    rate = 12 / len(set(USERS))
    deviation = (steps * rate * (1 - rate)) ** 0.5
    assert all(abs(drawn[user] - steps * rate) < 5 * deviation for user in set(USERS))


def test_what_a_row_draws_does_not_depend_on_who_else_is_there() -> None:
    data = module()
    alone = dict(rows(data._make(3, [7])))
    before = torch.get_rng_state(), random.getstate()
    beside = dict(rows(data._make(3, [0, 5, 7, 9])))
    assert alone.items() <= beside.items() and len(beside) > len(alone)
    assert dict(rows(data._make(4, [7]))) != alone, "another step draws anew"
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]


def test_two_ranks_share_the_sample_of_one_and_a_resumed_run_goes_on() -> None:
    one = [rows(batch) for batch in on_rank(module(), 0, 1).train_dataloader()]
    two = [[rows(batch) for batch in on_rank(module(), rank, 2).train_dataloader()] for rank in (0, 1)]
    assert all(sorted(both) == sorted(a + b) for both, a, b in zip(one, *two, strict=True))
    resumed = [rows(batch) for batch in on_rank(module(), 0, 1, step=2).train_dataloader()]
    assert resumed[: len(one) - 2] == one[2:]


def test_the_fingerprint_follows_every_row_and_whose_it_is() -> None:
    features = torch.arange(200.0)
    other = features.clone()
    other[150] += 1
    prints = [
        module(TensorDataset(x), sampling_seed=seed).data_fingerprint for x in (features, other) for seed in (1, 2)
    ]
    assert prints[0] == prints[1] != prints[2] == prints[3]
    assert module(TensorDataset(features), unit_of=lambda row: USERS[row] + 1).data_fingerprint == prints[0]
    assert module(TensorDataset(features), unit_of=lambda row: row // 2).data_fingerprint != prints[0]
    assert module().data_fingerprint == module().data_fingerprint, "though its rows are drawn at random"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: module(Stream()), "IterableDataset|Stream .*excludes Poisson sampling"),
        (lambda: module(DataLoader(Noisy())), "DataLoader.*loader.dataset"),
        (lambda: module({"a": 1}), "dict"),
        (lambda: module([]), "no rows"),
        (lambda: module(unit=None), "unit='row'"),
        (lambda: module(unit_of=None), "no field 'user'.*unit_of"),
        (lambda: module(unit_of=USERS[:-1]), "199 ids.*200 rows"),
        (lambda: module(unit_of=lambda row: 0.5), "row 0: .*is a decimal number"),
        (lambda: module(unit="row"), "unit_of has no place"),
        (lambda: module(batch_size=1000), "batch_size is 1000"),
        (lambda: module([[1], [1, 2]], unit_of=[1, 2], collate=None, batch_size=1).setup("fit"), None),
        (lambda: module([object()], unit_of=[1], collate=None, batch_size=1).setup("fit"), "give collate"),
    ],
    ids=["stream", "loader", "dict", "empty", "nobody", "field", "ids", "float", "row", "batch", "fine", "collate"],
)
def test_what_is_no_dataset_is_refused_by_name(make: Callable[[], Any], message: str | None) -> None:
    if message is None:
        make()
        return
    with pytest.raises(DataError, match=message):
        make()


def test_a_dataset_that_changes_is_refused() -> None:
    growing = Noisy()
    data = module(growing)
    batches = iter(data.train_dataloader())
    next(batches)
    growing.num += 1
    with pytest.raises(DataError, match="another length"):
        next(batches)

    class Counting(Noisy):
        def __getitem__(self, row: int) -> Any:
            self.reads = getattr(self, "reads", 0) + 1
            return row, self.reads

    with pytest.raises(DataError, match="another row when it is read again"):
        module(Counting()).data_fingerprint  # noqa: B018


def test_a_row_of_an_evaluation_comes_once_on_any_rank() -> None:
    data = module(val=list(range(25)), val_is_public=True, max_rows_per_micro_batch=10)
    for world_size in (1, 2, 3):
        seen = [p for rank in range(world_size) for p in on_rank(data, rank, world_size).val_dataloader()]
        assert sorted(row for part in seen for row in part.rows) == list(range(25))
        assert all(part.is_public and part.num_units == len(part.rows) for part in seen)
    assert data.test_dataloader() == []
