"""Rows in memory as Poisson-sampled logical batches: the data module for a model of one's own."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from datamodules.batch import LogicalBatch
from datamodules.data_module import DataModule, check_limits
from datamodules.loader import Loader
from datamodules.logical_batches import choose
from datamodules.turn import unit_name
from doppel.errors import DataError
from doppel.privacy.fingerprint import sealed
from doppel.privacy.secret import Secret


@dataclass
class UnitBatch:
    """A micro-batch of whole units.

    Attributes:
        rows: What ``collate`` made of the rows, unit by unit.
        num_units: Number of units.
        rows_per_unit: Rows of each.
    """

    rows: Any
    num_units: int
    rows_per_unit: int


class UnitDataModule(DataModule):
    """Any rows, grouped by whom they belong to; follows :class:`~datamodules.private_data.PrivateData`.

    Formal guarantees:
        Each unit takes part in each step independently with probability ``batch_size`` / N, whatever it holds. A unit
        with more than ``max_rows_per_unit`` rows is represented by a uniform choice, a function of (secret, step,
        unit). The rows of a unit are in one micro-batch. Ranks take disjoint parts of one sample.

    Args:
        rows: The training rows, such as ``{"text": …, "label": …, "user": …}``.
        unit: Name of the field that says whom a row belongs to; also what the guarantee is said to protect.
        collate: Makes the inputs of a micro-batch from its rows. What it makes of a row must not depend on the others,
            but for padding that the model leaves out.
        batch_size: Expected number of units in a step, over all ranks.
        max_rows_per_unit: Rows that represent a unit in a step, at most; public.
        max_rows_per_micro_batch: Rows that go through the model at once; a single unit may pass it.
        sampling_seed: For tests only: a fixed seed makes the sample predictable and voids the guarantee.
    """

    sampling = "poisson"
    privacy_caveat: str | None = None

    def __init__(
        self,
        rows: Sequence[Mapping[str, Any]],
        unit: str,
        collate: Callable[[list[Mapping[str, Any]]], Any],
        batch_size: int,
        max_rows_per_unit: int = 4,
        max_rows_per_micro_batch: int = 256,
        sampling_seed: int | None = None,
    ) -> None:
        super().__init__()
        check_limits(
            batch_size=batch_size,
            max_rows_per_unit=max_rows_per_unit,
            max_rows_per_micro_batch=max_rows_per_micro_batch,
        )
        self.unit = unit
        self.collate = collate
        self.batch_size = batch_size
        self.max_rows_per_unit = max_rows_per_unit
        self.max_rows_per_micro_batch = max_rows_per_micro_batch
        self.sampling_seed = sampling_seed
        units: dict[str, list[Mapping[str, Any]]] = {}
        for number, row in enumerate(rows):
            if unit not in row:
                raise DataError(f"row {number} has no field {unit!r}, which names its unit")
            try:
                units.setdefault(unit_name(row[unit]), []).append(row)
            except ValueError as error:
                raise DataError(f"row {number}: the field {unit!r} {error}") from None
        self._units = list(units.values())
        if batch_size > len(self._units):
            raise DataError(f"batch_size is {batch_size}, but there are {len(self._units)} units: give at most that")
        self._secret = Secret(sampling_seed)

    @property
    def num_units(self) -> int:
        """N."""
        return len(self._units)

    @property
    def data_fingerprint(self) -> str:
        """Keyed hash of the rows, tensors and arrays in full."""
        text = json.dumps([[dict(row) for row in rows] for rows in self._units], sort_keys=True, default=_digest)
        return sealed(hashlib.sha256(text.encode()).hexdigest())

    def train_dataloader(self) -> Loader[LogicalBatch]:
        """Logical batches, beginning at the step that the trainer has reached."""
        return self.steps(self.poisson(self.num_units, self.batch_size, self.sampling_seed), self._make)

    def _make(self, step: int, drawn: list[int]) -> LogicalBatch:
        rank, world_size = self.rank_and_world_size()
        mine = drawn[rank::world_size]
        groups: dict[int, list[list[Mapping[str, Any]]]] = {}
        for unit in mine:
            rows = self._units[unit]
            chosen = choose(self._secret, step, unit, len(rows), self.max_rows_per_unit)
            groups.setdefault(len(chosen), []).append([rows[i] for i in chosen])
        parts: list[Any] = []
        for rows_per_unit, units in sorted(groups.items()):
            size = max(self.max_rows_per_micro_batch // rows_per_unit, 1)
            for start in range(0, len(units), size):
                part = units[start : start + size]
                rows = [row for unit_rows in part for row in unit_rows]
                parts.append(UnitBatch(self.collate(rows), len(part), rows_per_unit))
        return LogicalBatch(parts, len(mine), float(self.batch_size))


def _digest(value: object) -> list[str]:
    """What JSON cannot say, in short; the text of a large tensor would leave out its middle."""
    content = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
    if isinstance(content, np.ndarray) and content.dtype != object:
        return [str(content.dtype), str(content.shape), hashlib.sha256(content.tobytes()).hexdigest()]
    return [type(value).__name__, hashlib.sha256(pickle.dumps(value)).hexdigest()]
