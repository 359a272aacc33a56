"""An ordinary map-style dataset as Poisson-sampled logical batches: the data module for a model of one's own."""

from __future__ import annotations

import hashlib
import logging
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from lightning.pytorch.utilities.seed import isolate_rng
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, default_collate
from tqdm import tqdm

from datamodules.batches.batch import LogicalBatch
from datamodules.batches.collate_trial import CollateTrial, quoting_nothing
from datamodules.batches.cut import representatives
from datamodules.batches.loader import Batches, Loader
from datamodules.batches.same_rows import content_text
from datamodules.data_module import DataModule, check_limits
from datamodules.reading.columns import Columns
from datamodules.reading.units import NameRule, UnitNames, check_rule
from doppel.errors import DataError
from doppel.files import kind_of
from doppel.privacy.secret import Secret
from doppel.privacy.spec import usual_batch_size

log = logging.getLogger(__name__)


@dataclass
class UnitBatch:
    """A micro-batch of whole units.

    Attributes:
        rows: What ``collate`` made of the rows, unit by unit: row i is of unit i // ``rows_per_unit``. That ``collate``
            leaves each in its place was tried before the first step.
        num_units: Number of units.
        rows_per_unit: Rows of each.
        is_public: Whether metrics of these rows may leave the process.
    """

    rows: Any
    num_units: int
    rows_per_unit: int
    is_public: bool = False


class UnitDataModule(DataModule):
    """Any map-style dataset, its rows grouped by whom they belong to; follows
    :class:`~datamodules.private_data.PrivateData`.

    A dataset is what has a length and gives row i at ``dataset[i]``: a ``torch.utils.data.Dataset``, a list, a dataset
    of Hugging Face. Shuffling, batches and a ``DataLoader`` have no place here; the three lines that suffice::

        class Data(UnitDataModule):
            def __init__(self, batch_size: int | None = None):
                super().__init__(MyDataset(), unit="user", unit_of=users, batch_size=batch_size)

    Formal guarantees:
        Poisson sampling: each step includes each unit independently with q = B/N, whatever it holds; N is the
        number of units, not of rows. A unit with more than ``max_rows_per_unit`` rows is represented by a uniform
        choice, a function of (secret, step, unit). The rows of a unit are in one micro-batch, so they are clipped
        together. ``collate`` sees rows of drawn units alone. Before each row is read, the generators of torch, numpy
        and ``random`` are set by (secret, step, row), and given back afterwards. So what ``dataset[i]`` draws at
        random, such as a crop, is a function of its own row: one unit more leaves the rows of the others as they are.
        Ranks take disjoint parts of one sample.

        Before the first step each row is read, and collated alone and beside others, which must give the same
        (:class:`~datamodules.batches.collate_trial.CollateTrial`): a row that raises costs nothing, and a ``collate``
        that sorts rows or mixes them is refused. Before each step the length of the dataset is looked at. What code of
        the user's raises is told by its type and the number of the row, for its message may quote one.

        What cannot be checked: that ``dataset[i]`` and ``collate`` are made from row i and public numbers alone, with
        no vocabulary, mean or scale of the private rows; that the model leaves padding out; that ``unit_of`` names the
        right one.

    Args:
        dataset: The training rows.
        unit: What the guarantee protects, in a word that is printed beside ε: ``row`` where each row is somebody
            else's, else what ``unit_of`` names, such as ``user``.
        collate: Makes the inputs of a micro-batch from a list of its rows. Null: torch's ``default_collate``, which
            stacks rows of one shape.
        batch_size: Expected number of units in a step, over all ranks. Null: a twentieth of the units, see
            :func:`~doppel.privacy.spec.usual_batch_size`.
        max_rows_per_unit: Rows that represent a unit in a step, at most; public.
        max_rows_per_micro_batch: Rows that go through the model at once; a single unit may pass it.
        sampling_seed: For tests only: a fixed seed makes the sample predictable and voids the guarantee.
        unit_of: Whom row i belongs to: a function of i, the ids of all rows in their order, or the name of a field of
            rows that are mappings. Null: the field named like ``unit``.
        val: Rows of a validation, which are not trained on.
        test: Rows of a test, likewise.
        val_is_public: Whether anybody may see the rows of ``val``, so that metrics of them may leave the process.
        test_is_public: Whether anybody may see the rows of ``test``.
        is_public: Whether anybody may see all of the rows; they may then be trained on without privacy.
        unit_names: Names that differ in spelling alone, as ``Ana@x.org`` and ``ana@x.org`` do: ``folded`` makes them
            one unit, ``exact`` different ones. Null: rows with such names are refused until this is given
            (:class:`~datamodules.reading.units.UnitNames`).
    """

    sampling = "poisson"
    privacy_caveat: str | None = None

    def __init__(
        self,
        dataset: Any,
        unit: str | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        batch_size: int | None = None,
        max_rows_per_unit: int = 4,
        max_rows_per_micro_batch: int = 256,
        sampling_seed: int | None = None,
        *,
        unit_of: Callable[[int], object] | Sequence[object] | str | None = None,
        val: Any = None,
        test: Any = None,
        val_is_public: bool = False,
        test_is_public: bool = False,
        is_public: bool = False,
        unit_names: NameRule | None = None,
    ) -> None:
        super().__init__()
        check_rule(unit_names)
        check_limits(
            batch_size=batch_size,
            max_rows_per_unit=max_rows_per_unit,
            max_rows_per_micro_batch=max_rows_per_micro_batch,
        )
        if unit is None:
            raise DataError(
                "nothing says whom the guarantee protects: give unit='row' if each row is somebody else's; else a word "
                "such as unit='user', and unit_of, which says whose row i is"
            )
        for name, rows in {"dataset": dataset, "val": val, "test": test}.items():
            if rows is not None or name == "dataset":
                _check_dataset(name, rows)
        self.dataset, self.val, self.test = dataset, val, test
        self.unit = unit
        self.collate = collate or default_collate
        self.max_rows_per_unit = 1 if unit == "row" else max_rows_per_unit
        self.max_rows_per_micro_batch = max_rows_per_micro_batch
        self.sampling_seed = sampling_seed
        self.is_public = is_public
        self.val_is_public, self.test_is_public = val_is_public or is_public, test_is_public or is_public
        for name, told in {"val": self.val_is_public, "test": self.test_is_public}.items():
            if told and not is_public and getattr(self, name) is dataset:
                raise DataError(f"{name} is the dataset that is trained on, which is not declared public: give others")
        self._num_rows = len(dataset)
        self._secret = Secret(sampling_seed)
        with isolate_rng():
            self._units = self._grouped(unit_of, UnitNames(unit_names, "unit_names="))
        if batch_size is not None and batch_size > self.num_units:
            raise DataError(
                f"batch_size is {batch_size}, but there are {self.num_units} units: give at most that, or null for a "
                "twentieth of them"
            )
        self.batch_size = batch_size or usual_batch_size(self.num_units)

    @property
    def num_units(self) -> int:
        """N."""
        return len(self._units)

    @cached_property
    def data_fingerprint(self) -> str:
        """Digest of all rows and whose they are, tensors and arrays in full. Never to be shown.

        A private training asks for it before its first step, so each row is read here, collated, and compared with what
        it is beside others (:class:`~datamodules.batches.collate_trial.CollateTrial`); those of ``val`` are collated.

        Raises:
            DataError: A row cannot be read or collated, or ``collate`` mixes rows; it tells nothing of their content.
        """
        digest = hashlib.sha256()
        bar = partial(tqdm, leave=False, dynamic_ncols=True, disable=None, delay=2)
        with isolate_rng():
            trial = CollateTrial(self.collate, self._row, self._num_rows, self.max_rows_per_micro_batch)
            for rows in bar(self._units, "   reading and collating each row once", unit="unit"):
                contents = [self._row(row) for row in rows]
                with quoting_nothing("a hash of its rows", "give rows that can be pickled", f"unit of rows {rows[:1]}"):
                    digest.update(content_text(contents).encode())
                for row, content in zip(rows, contents, strict=True):
                    trial.add(row, content)
            trial.finish()
            for row in bar(range(0 if self.val is None else len(self.val)), "   collating val", unit="row"):
                self._collated([_read("val", self.val, row)], f"collate, row {row} of val")
        return digest.hexdigest()

    def hide(self, rows: list[Any], num_empty: int) -> None:
        """Add canaries of an audit, a unit each, and for those that take no part units without rows: N stays."""
        self._units += [[self._num_rows + i] for i in range(len(rows))] + [[] for _ in range(num_empty)]
        self.dataset = ConcatDataset([self.dataset, rows])  # type: ignore[list-item]
        self._num_rows = len(self.dataset)

    def setup(self, stage: str) -> None:
        """Test ``collate`` on the first row, alone and twice, before anything is spent.

        Raises:
            DataError: ``collate`` gives something that it may not, or there is nothing to evaluate on.
        """
        for what, name, rows in (("validate", "val", self.val), ("test", "test", self.test)):
            if stage == what and rows is None:
                raise DataError(f"there is nothing to {what} on: give {name}=DATASET to UnitDataModule.__init__")
        with isolate_rng():
            for num in (1, 2) if stage == "fit" else ():
                self._collated([self._row(0) for _ in range(num)], "collate, row 0" + " twice" * (num - 1))

    def train_dataloader(self) -> Loader[LogicalBatch]:
        """Return logical batches, beginning at the step that the trainer has reached."""
        return self.steps(self.poisson(self.num_units, self.batch_size, self.sampling_seed), self._make)

    def val_dataloader(self) -> Loader[UnitBatch] | list[Any]:
        """Build micro-batches of ``val``, each row once; none without it."""
        return self._evaluation("val", self.val, self.val_is_public)

    def test_dataloader(self) -> Loader[UnitBatch] | list[Any]:
        """Build micro-batches of ``test``, likewise."""
        return self._evaluation("test", self.test, self.test_is_public)

    def _make(self, step: int, drawn: list[int]) -> LogicalBatch:
        if len(self.dataset) != self._num_rows:
            raise DataError(
                "the dataset has another length than at the start, and N may not change: give one of fixed length",
                about=type(self.dataset).__name__,
            )
        rank, world_size = self.rank_and_world_size()
        mine = drawn[rank::world_size]
        parts: list[Any] = []
        there = (unit for unit in mine if self._units[unit])
        for units in representatives(self._secret, step, there, self._units.__getitem__, self.max_rows_per_unit):
            rows_per_unit = len(units[0])
            size = max(self.max_rows_per_micro_batch // rows_per_unit, 1)
            for start in range(0, len(units), size):
                part = units[start : start + size]
                with isolate_rng():
                    rows_of_part = [self._row(row, step) for unit_rows in part for row in unit_rows]
                    made = self._collated(rows_of_part, f"collate, step {step}")
                    parts.append(UnitBatch(made, len(part), rows_per_unit))
        return LogicalBatch(parts, len(mine), float(self.batch_size), is_public=self.is_public)

    def _row(self, row: int, step: int | None = None) -> Any:
        """A row, with what it draws at random a function of the secret, the step and itself; of itself without step.

        Whoever reads rows gives the generators back afterwards.
        """
        seed = row if step is None else self._secret.derive("row", step, row)
        words = [seed >> (32 * i) & 0xFFFFFFFF for i in range(4)]
        torch.default_generator.manual_seed(words[0] | words[1] << 32)
        if torch.cuda.is_initialized():  # as it is by the first row, which was read, if rows draw on a GPU
            torch.cuda.manual_seed_all(words[0] | words[1] << 32)
        np.random.seed(words)
        random.seed(repr(words))
        return _read("dataset", self.dataset, row)

    def _collated(self, rows: list[Any], about: str) -> Any:
        mend = "mend the row, or give collate, a function of a list of rows, for other lengths, types and fields"
        with quoting_nothing("it", mend, about):
            return self.collate(rows)

    def _evaluation(self, name: str, rows: Any, is_public: bool) -> Loader[UnitBatch] | list[Any]:
        if rows is None:
            warnings.filterwarnings("ignore", message="Total length of `list` across ranks is zero")
            return []
        size = min(self.max_rows_per_micro_batch, -(-len(rows) // self.rank_and_world_size()[1]))
        parts = [range(start, min(start + size, len(rows))) for start in range(0, len(rows), size)]

        def make(number: int) -> UnitBatch:
            part = [_read(name, rows, row) for row in parts[number]]
            return UnitBatch(self._collated(part, f"collate, batch {number} of {name}"), len(part), 1, is_public)

        return self.sharded(Batches(make, len(parts)))

    def _grouped(
        self, unit_of: Callable[[int], object] | Sequence[object] | str | None, names: UnitNames
    ) -> list[list[int]]:
        """The rows of each unit, in the order in which units come first."""
        if self.unit == "row" and unit_of is None:
            first = self._row(0)
            owners = Columns().owners([str(name) for name in first]) if isinstance(first, Mapping) else []
            if owners and not self.is_public:
                log.warning(
                    f"the rows have a field {owners[0]!r}, which seems to say whose a row is, and unit='row' protects "
                    f"one row alone: give unit={owners[0]!r} to protect all rows of one"
                )
            return [[row] for row in range(self._num_rows)]
        if self.unit == "row":
            raise DataError("unit='row' protects one row, so unit_of has no place: name what it says, unit='user'")
        named = unit_of if callable(unit_of) else self._listed(unit_of)
        units: dict[str, list[int]] = {}
        for row in range(self._num_rows):
            with quoting_nothing("it", f"try unit_of({row})", f"unit_of, row {row}"):
                owner = named(row)
            try:
                value = getattr(owner, "item", lambda owner=owner: owner)()
                units.setdefault(names.read(value, f"row {row}", f"its unit {self.unit!r}"), []).append(row)
            except ValueError as error:
                raise DataError(f"row {row}: what says its unit {self.unit!r} {error}") from None
        names.refuse_heavy(f"its units {self.unit!r}", "the data set")
        return list(units.values())

    def _listed(self, unit_of: Sequence[object] | str | None) -> Callable[[int], object]:
        """``unit_of`` as a function: of given ids, or of a field of the rows."""
        if unit_of is None or isinstance(unit_of, str):
            return self._field(unit_of or self.unit)
        if len(unit_of) != self._num_rows:
            raise DataError(
                f"unit_of has {len(unit_of)} ids, and the dataset {self._num_rows} rows: give one for each row"
            )
        return unit_of.__getitem__

    def _field(self, name: str) -> Callable[[int], object]:
        def owner(row: int) -> object:
            content = self._row(row)
            if not isinstance(content, Mapping):
                raise DataError(
                    f"row {row} is {kind_of(content)}, which has no field {name!r} that names its unit: give "
                    "unit_of, the ids of all rows or a function of a row's number; or unit='row' if each row is "
                    "somebody else's"
                )
            if name not in content:
                raise DataError(f"row {row} has no field {name!r}, which names its unit: give unit_of another")
            return content[name]

        return owner


def _read(name: str, rows: Any, row: int) -> Any:
    with quoting_nothing("it", "mend the row, or the dataset; try it where you may see the row", f"{name}[{row}]"):
        return rows[row]


def _check_dataset(name: str, dataset: Any) -> None:
    """Refuse what is no map-style dataset, by what it is."""
    kind = type(dataset).__name__
    if isinstance(dataset, DataLoader):
        mend = f"a DataLoader draws its own batches: give its dataset ({name}=loader.dataset) and its collate_fn"
    elif isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        mend = (
            "its rows come in an order of its own, which excludes Poisson sampling: give a dataset with "
            "__len__ and __getitem__, such as list(dataset)"
        )
    elif isinstance(dataset, str | bytes | Mapping):
        mend = "give a dataset whose rows are dataset[0], dataset[1], …"
    elif len(dataset) == 0:
        mend = "it has no rows"
    else:
        try:
            dataset[0]
            return
        except Exception as error:  # noqa: BLE001 whatever the user's code raises; its message may quote a row
            mend = f"dataset[0] is a {type(error).__name__}: row i must be dataset[i], as in a list"
    raise DataError(f"{name} is a {kind} that cannot be trained on: {mend}")
