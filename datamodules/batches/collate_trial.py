"""Every row is read and collated before the first step is paid: errors without content, and no rows that mix."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pickle import PicklingError
from typing import Any, NamedTuple

import numpy as np
import torch

from datamodules.batches.same_rows import RowsDifferError, SameRows, content_text
from doppel.errors import DataError

#: Rows from all over the data that are in every batch of a trial.
_NUM_BESIDE = 16
_TRY = "try collate([dataset[{}]]) where you may see the row; nothing of it is quoted here"
_RANDOM = "draws at random, as rows and places come: draw in dataset[i], where the generators are set for each row"


class _Row(NamedTuple):
    content: Any
    alone: Any


@contextmanager
def quoting_nothing(what: str, mend: str, about: object = "") -> Iterator[None]:
    """Tell by its type alone what code of the user's raises in this block: its message may quote a row.

    Raises:
        DataError: It raises something.
    """
    try:
        yield
    except DataError:  # says nothing of a row, and where and how to mend it
        raise
    except Exception as error:  # noqa: BLE001 whatever the user's code raises
        raise DataError(f"{what} raises {type(error).__name__}: {mend}", about=about) from None


class CollateTrial:
    """Collates rows one by one and together, and compares (:class:`~datamodules.batches.same_rows.SameRows`).

    Formal guarantees:
        The clipper takes rows i·k to i·k + k - 1 of a micro-batch for those of unit i, and C bounds a unit only if
        nothing of it is in the rows of others. Here each row of the data is collated alone, and in a batch: of 2 rows,
        4, 8 and so on up to those of a micro-batch, in an order drawn at random, where a part of them comes from all
        over the data, for rows may be sorted by length or label in the file. Nothing is spent before.

        Not seen are: what ``collate`` or ``dataset[i]`` took from all rows before, or keeps from call to call, such as
        a vocabulary, for it is the same alone and together; what is in the padding; and what other batches than these
        would show.

    Args:
        collate: As of :class:`~datamodules.unit_data_module.UnitDataModule`.
        read: Reads a row by its number.
        num_rows: How many rows there are.
        max_rows: Most rows of a batch.

    Raises:
        DataError: A row is another one when it is read again; or ``collate`` raises, draws at random, changes the rows
            of the data, puts them in another order, or makes something else of one beside others. It names the number
            of the row and the part of the batch, and quotes nothing.
    """

    def __init__(
        self, collate: Callable[[list[Any]], Any], read: Callable[[int], Any], num_rows: int, max_rows: int
    ) -> None:
        self._collate, self._read = collate, read
        self._max_rows = max(max_rows, 2)
        self._same = SameRows()
        self._random = random.Random(0)
        self._size = 2
        self._reads_anew = False
        self._waiting: dict[int, _Row] = {}
        numbers = range(0, num_rows, max(num_rows // _NUM_BESIDE, 1))[:_NUM_BESIDE]
        self._texts = {number: self._text(number) for number in numbers}
        for number, text in self._texts.items():
            if text != self._text(number):
                raise DataError(
                    "is another row when it is read again, and a row must be a function of its number: draw what is "
                    "random from torch, numpy.random or random without a generator of the dataset's own, for these are "
                    "set for each row",
                    about=f"dataset[{number}]",
                )
        self._beside = {number: self._tried(number, read(number)) for number in numbers}
        self._refuse_changes()

    def add(self, number: int, row: Any) -> None:
        """Collate a row alone, and where enough of them wait, together."""
        self._waiting[number] = self._tried(number, row)
        if len(self._waiting) >= self._size - min(self._size // 2, _NUM_BESIDE):
            self._compare_waiting()

    def finish(self) -> None:
        """Compare those that still wait, and look at rows of the data again."""
        self._compare_waiting()
        self._refuse_changes()

    def _compare_waiting(self) -> None:
        others = [number for number in self._beside if number not in self._waiting]
        beside = self._random.sample(others, min(len(others), self._size // 2))
        rows = self._waiting | {number: self._beside[number] for number in beside}
        numbers = self._random.sample(list(rows), len(rows))
        self._waiting, self._size = {}, min(self._size * 2, self._max_rows)
        if len(numbers) < 2:
            return
        if not self._reads_anew:
            try:
                return self._compare(numbers, rows, lambda number: rows[number].content)
            except DataError:  # collate may change a row where the dataset makes it anew
                self._reads_anew = True
        self._compare(numbers, rows, self._read)

    def _compare(self, numbers: list[int], rows: dict[int, _Row], give: Callable[[int], Any]) -> None:
        def together(some: list[int]) -> Any:
            return self._together([numbers[i] for i in some], give)

        try:
            self._same.check(together([*range(len(numbers))]), [rows[number].alone for number in numbers], together)
        except RowsDifferError as error:
            index, why = error.index, _RANDOM if self._draws(numbers) else error.why
            where = "collate" if index is None else f"collate, row {numbers[index]}"
            raise DataError(why, about=f"{where}, part {error.place}" if error.place else where) from None
        except (AttributeError, RuntimeError, TypeError, ValueError, PicklingError) as error:
            raise DataError(
                f"what it makes cannot be compared with its rows ({type(error).__name__}): give tensors, arrays, "
                "numbers or texts, in mappings, lists, tuples or attributes",
                about="collate",
            ) from None

    def _tried(self, number: int, row: Any) -> _Row:
        with quoting_nothing(
            "it", f"mend the row, or give collate for it ({_TRY.format(number)})", f"collate, row {number} alone"
        ):
            return _Row(row, self._collate([row]))

    def _together(self, numbers: list[int], give: Callable[[int], Any]) -> Any:
        given = [give(number) for number in numbers]
        try:
            return self._collate(given)
        except Exception as error:  # noqa: BLE001 whatever the user's code raises
            kind = type(error).__name__
        if len(numbers) > 2:
            for other in numbers[1:]:
                self._together([numbers[0], other], self._read)
        raise DataError(
            f"it raises {kind}, and takes each of them alone: look for other lengths, types or fields, and give "
            "collate, a function of a list of rows, that pads",
            about=f"collate, rows {numbers[0]} and {numbers[1]} together"
            if len(numbers) == 2
            else "collate, many rows",
        )

    def _draws(self, numbers: list[int]) -> bool:
        """Whether calls under different seeds differ."""
        made = []
        for seed in range(8):
            given = [self._read(number) for number in numbers]
            torch.manual_seed(seed)
            np.random.seed(seed)
            random.seed(seed)
            with suppress(Exception):
                made.append(content_text(self._collate(given), in_full=False))
        return len(set(made)) > 1

    def _refuse_changes(self) -> None:
        for number, text in self._texts.items():
            if self._text(number) != text:
                raise DataError(
                    f"row {number} of the data is another one after it was collated: copy a row before you change it, "
                    "for dataset[i] gives it again",
                    about="collate",
                )

    def _text(self, number: int) -> str:
        with quoting_nothing("reading it for a hash", _TRY.format(number), f"dataset[{number}]"):
            return content_text(self._read(number), in_full=False)
