"""A dataset of one's own: rows that change places or mix, and rows that cannot be used, are told before any step."""

from __future__ import annotations

import random
import traceback
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import Dataset

from datamodules.unit_data_module import UnitBatch, UnitDataModule
from doppel.errors import DataError
from doppel.privacy.clipping import PerSampleClipper
from doppel.privacy.ledger import Ledger
from lightning_modules.training.logical_batch_module import LogicalBatchModule
from tests.private_training import fit, privacy

pytestmark = pytest.mark.filterwarnings("ignore")
SECRET = "zanzibar"
Row = dict[str, Any]


def made_up(num: int = 80) -> list[Row]:
    draw = random.Random(0)
    return [
        {
            "ids": draw.choices(range(1, 50), k=draw.randrange(1, 30)),
            "text": f"{SECRET} {i}",
            "y": i % 2,
            "user": i // 2,
        }
        for i in range(num)
    ]


ROWS = made_up()


def padded(rows: list[Row], **kwargs: Any) -> Tensor:
    ids = [torch.tensor(row["ids"], dtype=torch.long) for row in rows]
    return pad_sequence(ids, **({"batch_first": True} | kwargs))


def labels(rows: list[Row]) -> Tensor:
    return torch.tensor([row["y"] for row in rows])


def collate(rows: list[Row]) -> tuple[Tensor, Tensor]:
    return padded(rows), labels(rows)


def longest_first(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: -len(row["ids"]))


class Bag(LogicalBatchModule):
    """The mean of a row's words; the order of rows does not matter to it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 8), nn.Linear(8, 2)

    def losses(self, batch: UnitBatch) -> Tensor:
        ids, y = batch.rows
        mask = (ids != 0).unsqueeze(-1)
        mean = (self.embed(ids) * mask).sum(1) / mask.sum(1).clamp(min=1)
        return nn.functional.cross_entropy(self.head(mean), y, reduction="none")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def module(rows: Any = None, collate: Any = collate, **kwargs: Any) -> UnitDataModule:
    return UnitDataModule(ROWS if rows is None else rows, "user", collate, batch_size=20, **kwargs)


def clipped_sum(model: Bag, data: UnitDataModule) -> Tensor:
    clipper = PerSampleClipper(model, 1.0)
    model.zero_grad()
    for part in data._make(0, list(range(data.num_units))).micro_batches:
        with clipper.capture(part.num_units, part.rows_per_unit):
            model.losses(part).sum().backward()
        clipper.accumulate()
    clipper.close()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def test_a_collate_that_sorts_moves_the_sum_by_more_than_its_bound_and_trains_no_step(tmp_path: Path) -> None:
    def sorting(rows: list[Row]) -> tuple[Tensor, Tensor]:
        return collate(longest_first(rows))

    torch.manual_seed(0)
    model = Bag()
    for one, least, most in ((sorting, 1.2, 9.0), (collate, 0.0, 1.0 + 1e-5)):
        everybody = clipped_sum(model, module(collate=one))
        others = ([row for row in ROWS if row["user"] != user] for user in range(0, 40, 5))
        moved = max(float((everybody - clipped_sum(model, module(rows, one))).norm()) for rows in others)
        assert least <= moved <= most, "so what follows is no formality"
    with pytest.raises(DataError, match="another order.*pack_padded_sequence.*keep the order"):
        fit(tmp_path, model, module(collate=sorting), [privacy(tmp_path, seed=None)])
    assert not Ledger(tmp_path / "ledger.jsonl").mechanisms


class Made:
    """A batch with attributes."""

    def __init__(self, rows: list[Row]) -> None:
        self.ids = padded(rows)
        self.mask = self.ids != 0
        self.causal = self.mask[:, None, :] & torch.ones(2 * self.ids.shape[1:], dtype=torch.bool).tril()


def left(rows: list[Row]) -> Row:
    ids = padded(rows, padding_side="left", padding_value=-1)
    return {"ids": ids, "mask": (ids >= 0).long(), "bias": torch.zeros(ids.shape).masked_fill(ids < 0, -torch.inf)}


def positions(rows: list[Row]) -> Row:
    ids = padded(rows)
    here = torch.arange(ids.shape[1])
    return {"ids": ids, "one": here[None], "all": here.expand(len(rows), -1), "lengths": (ids != 0).sum(1)}


def eights(rows: list[Row]) -> Tensor:
    ids = padded(rows)
    return nn.functional.pad(ids, (0, -ids.shape[1] % 8))


def lists(rows: list[Row]) -> tuple[Any, ...]:
    longest = max(len(row["ids"]) for row in rows)
    numbers = [row["ids"] + [0] * (longest - len(row["ids"])) for row in rows]
    return numbers, [row["text"] for row in rows], np.array([row["text"] for row in rows]), [torch.ones(3)] * len(rows)


def images(rows: list[Row]) -> Tensor:
    sides = [(1 + len(row["ids"]), 1 + row["y"]) for row in rows]
    batch = torch.zeros(len(rows), 3, max(h for h, _ in sides), max(w for _, w in sides))
    for i, (h, w) in enumerate(sides):
        batch[i, :, :h, :w] = len(rows[i]["ids"])
    return batch


def spectrum(rows: list[Row]) -> Tensor:
    return torch.fft.rfft(torch.stack([torch.tensor(row["ids"] * 30)[:30].float() for row in rows])).abs() @ MIXING


MIXING = torch.randn(16, 5, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "collate",
    [
        collate, left, positions, eights, lists, images, spectrum, Made, list, None,
        lambda rows: padded(rows, batch_first=False),
        lambda rows: SimpleNamespace(x=padded(rows), nested=[{"y": labels(rows)}, (None, "text", 3)]),
        lambda rows: torch.nested.nested_tensor([torch.tensor(row["ids"]) for row in rows]),
        lambda rows: nn.functional.one_hot(labels(rows), 2).to_sparse(),
        lambda rows: (labels(rows), torch.tensor([0.2, 0.8])),
    ],
)  # fmt: skip
def test_rows_that_stand_for_themselves_are_taken(collate: Any) -> None:
    rows = [{"x": torch.ones(2) * i, "name": str(i), "user": row["user"]} for i, row in enumerate(ROWS)]
    data = module(rows if collate is None else made_up(), collate, max_rows_per_micro_batch=24)
    data.setup("fit")
    assert data.data_fingerprint


def smoothed(rows: list[Row]) -> tuple[Tensor, Tensor]:
    hot = nn.functional.one_hot(labels(rows), 2).float()
    return padded(rows), 0.9 * hot + 0.1 * hot.mean(0)


def own_words(rows: list[Row]) -> Tensor:
    numbers: dict[int, int] = defaultdict(lambda: len(numbers) + 1)
    return pad_sequence([torch.tensor([numbers[i] for i in row["ids"]]) for row in rows], batch_first=True)


def packed(rows: list[Row]) -> Any:
    lengths = torch.tensor([len(row["ids"]) for row in rows])
    return pack_padded_sequence(padded(rows), lengths, batch_first=True, enforce_sorted=False), labels(rows)


def joined(rows: list[Row]) -> Row:
    starts = torch.tensor([0] + [len(row["ids"]) for row in rows[:-1]]).cumsum(0)
    return {"flat": torch.cat([torch.tensor(row["ids"]) for row in rows]), "offsets": starts}


def lost(rows: list[Row]) -> Tensor:
    return labels([row for row in rows if len(row["ids"]) > 3] or rows)


def cut(rows: list[Row]) -> Tensor:
    ids = padded(rows)
    return ids[:, : int(torch.quantile((ids != 0).sum(1).float(), 0.9))]


def crop(rows: list[Row]) -> Tensor:
    return padded(rows) * (torch.rand(len(rows), 1) < 0.8)


def filled(rows: list[Row]) -> Tensor:
    ids = padded(rows).float()
    return ids.masked_fill(ids == 0, float(ids.mean()))


def grown(rows: list[Row]) -> list[int]:
    for row in rows:
        row["ids"].append(1)
    return [len(row["ids"]) for row in rows]


def popped(rows: list[Row]) -> Tensor:
    return torch.tensor([row.pop("y") for row in rows])


def same_length(rows: list[Row]) -> None:  # in place: the next batch finds rows that were filled up
    longest = max(len(row["ids"]) for row in rows)
    for row in rows:
        row["ids"] += [0] * (longest - len(row["ids"]))


@pytest.mark.parametrize(
    ("collate", "message"),
    [
        (lambda rows: labels(sorted(rows, key=lambda row: row["y"])), "another order"),
        (lambda rows: [row["text"] for row in longest_first(rows)], "another order"),
        (lambda rows: {"x": {"ids": padded(rows)[torch.randperm(len(rows))]}}, r"random"),
        (packed, r"part \[0\]: positions come before rows in a PackedSequence"),
        (joined, r"\['flat'\]: row i of a batch must be made of row i alone"),
        (lost, "leave out, add and join no rows|depends on the rows beside it"),
        (cut, "cut no row by another one's length"),
        (smoothed, r"row \d+, part \[1\]: .*mean, scale or vocabulary of the batch"),
        (own_words, "mean, scale or vocabulary"),
        (lambda rows: padded(rows) / padded(rows).max(), "mean, scale or vocabulary"),
        (lambda rows: (padded(rows), padded(rows).shape[1]), r"part \[1\]: .*no length"),
        (lambda rows: {row["text"]: row["ids"] for row in rows}, "mean, scale or vocabulary"),
        (lambda rows: torch.tensor([row["y"] or 0.5 for row in rows]), "name it, as in"),
        (filled, "fill up with one constant"),
        (crop, r"draws at random.*dataset\[i\]"),
        (grown, "copy a row before you change it"),
        (popped, "copy a row before you change it|reading it|KeyError"),
        (same_length, "copy a row before you change it"),
        (lambda rows: (row for row in rows), "cannot be compared"),
    ],
)
@pytest.mark.parametrize("by", ["as they come", "by length", "by label"])
def test_rows_that_mix_or_move_are_refused_by_name(collate: Any, message: str, by: str) -> None:
    keys: dict[str, Callable[[Row], int]] = {"by length": lambda r: -len(r["ids"]), "by label": lambda r: int(r["y"])}
    rows = sorted(made_up(), key=keys.get(by, lambda row: 0))
    with pytest.raises(DataError, match=message) as refused:
        module(rows, collate, max_rows_per_micro_batch=24).data_fingerprint  # noqa: B018
    assert SECRET not in str(refused.value)


def test_a_collate_may_change_rows_that_are_made_anew() -> None:
    class Fresh(Dataset[Row]):
        def __len__(self) -> int:
            return len(ROWS)

        def __getitem__(self, row: int) -> Row:
            return dict(ROWS[row])

    def popping(rows: list[Row]) -> tuple[Tensor, Tensor]:
        y = torch.tensor([row.pop("y") for row in rows])
        return padded(rows), y

    data = module(Fresh(), popping)
    data.setup("fit")
    assert data.data_fingerprint == module(Fresh()).data_fingerprint


class Reading(Dataset[Row]):
    """Rows of which one cannot be read, or used."""

    def __init__(self, bad: Any, number: int = 71) -> None:
        self.bad, self.number = bad, number

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, row: int) -> Row:
        if row != self.number:
            return ROWS[row]
        if isinstance(self.bad, Exception):
            raise self.bad
        return ROWS[row] | self.bad


@pytest.mark.parametrize("place", ["train", "val"])
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (ValueError(f"cannot read {SECRET}"), r"\[71\]: it raises ValueError: mend the row"),
        ({"ids": SECRET}, "row 71.*raises (ValueError|TypeError): mend the row"),
        ({"y": None}, "row 71.*raises (Runtime|Type)Error: mend the row"),
    ],
)
def test_one_bad_row_costs_nothing_and_is_told_by_its_number(
    tmp_path: Path, bad: Any, message: str, place: str
) -> None:
    users = [row["user"] for row in ROWS]
    data = {"rows": Reading(bad)} if place == "train" else {"val": Reading(bad)}
    with pytest.raises(DataError, match=message) as refused:
        fit(tmp_path, Bag(), module(**data, unit_of=users), [privacy(tmp_path, seed=None)])
    assert SECRET not in "".join(traceback.format_exception(refused.value))
    assert not Ledger(tmp_path / "ledger.jsonl").mechanisms, "so the mended file is no other data set of a paid run"
    fit(tmp_path, Bag(), module(unit_of=users, val=ROWS), [privacy(tmp_path, seed=None)], max_epochs=1)


def test_rows_that_do_not_go_together_are_told_by_two_numbers() -> None:
    rows = [{"x": torch.ones(3 if i == 50 else 2), "user": i} for i in range(80)]
    with pytest.raises(DataError, match=r"rows (50 and \d+|\d+ and 50) together: it raises RuntimeError.*give collate"):
        module(rows, None).data_fingerprint  # noqa: B018


def test_an_empty_text_gives_no_other_type() -> None:
    """``torch.tensor([])`` is a tensor of floats."""
    rows = made_up()
    rows[33]["ids"] = []
    with pytest.raises(DataError, match=r"row 33, part \[0\]: the type .*torch.tensor\(ids, dtype=…\)"):
        untyped = lambda rows: [pad_sequence([torch.tensor(row["ids"]) for row in rows], batch_first=True)]  # noqa: E731
        module(rows, untyped).data_fingerprint  # noqa: B018
    assert module(rows).data_fingerprint


@pytest.mark.parametrize("where", ["dataset", "collate", "unit_of", "val", "first"])
def test_what_is_raised_later_quotes_nothing_either(where: str) -> None:
    """As where a random crop fails, at the thousandth step."""

    def breaks(*_: object) -> Any:
        raise RuntimeError(SECRET)

    class Breaking(Reading):
        __getitem__ = breaks

    data = module(unit_of=[row["user"] for row in ROWS], val=ROWS)
    with pytest.raises(DataError, match="it raises RuntimeError|is a ValueError") as refused:
        if where == "dataset":
            data.dataset = Breaking(None)
        elif where == "collate":
            data.collate = breaks
        elif where == "val":
            data.val = Breaking(None)
        else:
            module(Reading(ValueError(SECRET), 0)) if where == "first" else module(unit_of=breaks)
        list(data.val_dataloader() if where == "val" else data.train_dataloader())
    assert SECRET not in "".join(traceback.format_exception(refused.value))
