"""Rows of no data set, repeated, mixed and cut into micro-batches of any size: what the check of rows tries."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from doppel.privacy.private_step import PrivateTrainingError


@dataclass(frozen=True)
class Kind:
    """A row made of the two of a probe.

    Attributes:
        content: Whose tensors of two and more dimensions it has: 0 for the long row, 1 for the short one.
        label: Whose numbers and words it has, of which there is one for each row.
        start: Where the part of the content begins that it has.
        length: Length of that part, with padding behind it; None for all of the content.
        is_finite: Whether its loss is left as it is, or made nan.
    """

    content: int
    label: int
    start: int = 0
    length: int | None = None
    is_finite: bool = True


#: Positions of a row that is repeated, at most: memory of a step grows with their square.
_LONGEST = 512
LONG, SHORT, NAN = Kind(0, 0), Kind(1, 1), Kind(0, 0, is_finite=False)


class MadeUpRows:
    """Micro-batches of the rows that a module's ``probe()`` gives, whatever type holds them.

    A tensor or a list holds rows if it has one entry for each row of both batches. A dimension in which the second
    batch is longer than the first one is a row's length, and what stands there behind the short row is padding.

    Args:
        name: Of the module, for messages.
        alone: A micro-batch of one unit, the short row.
        beside: A micro-batch of two units, a long row and the same short one.

    Attributes:
        alone: The first of them.
        others: The short row with the label of the long one, if rows have one; if they have a length, parts of the long
            row and an empty row.

    Raises:
        PrivateTrainingError: They are not of that form, or the two rows are alike in something.
    """

    def __init__(self, name: str, alone: Any, beside: Any) -> None:
        self._name, self.alone, self._beside = name, alone, beside
        self._rows_per_unit = beside.rows_per_unit
        if (alone.num_units, beside.num_units) != (1, 2) or not hasattr(beside, "__dict__"):
            raise self._refusal("must give a micro-batch of one unit, and one of two, of which the last is the same")
        found: list[tuple[str, Any, Any]] = []

        def look(place: str, one: Any, two: Any) -> Any:
            found.append((place, one, two))

        self._rebuilt(alone, beside, look)
        if not found:
            raise self._refusal(
                f"gives a {type(beside).__name__} whose rows cannot be repeated: keep them in tensors or lists that "
                "have one entry for each row"
            )
        for place, _, two in found:
            if _equal(self._unit(two, 0), self._unit(two, 1)):
                raise self._refusal(
                    f"gives two rows that are alike in {place}, so that what depends on it would not be seen: let them "
                    "differ in whatever the model reads, such as labels"
                )
        sizes = [(one.shape[dim], two.shape[dim]) for _, one, two in found for dim in self._positions(one, two)]
        self.others = [Kind(1, 0)] if any(isinstance(two, list) or two.dim() == 1 for _, _, two in found) else []
        if any(long > _LONGEST for _, long in sizes):
            raise self._refusal(
                f"gives a second row of more than {_LONGEST} positions, of which the check makes batches of 32: give a "
                "short one (16 do), and the longest one in a third batch, followed by the same short row"
            )
        if sizes:
            short = min(one for one, _ in sizes)
            half = max(short // 2, 1)
            self.others += [Kind(0, 1, 0, 0), Kind(0, 1, half, half), Kind(0, 0, 0, short)]

    def batch(self, kinds: Sequence[Kind]) -> Any:
        """Return a micro-batch of a unit for each kind, as wide as the second batch of the probe."""

        def rows(place: str, one: Any, two: Any) -> Any:
            if isinstance(two, list):
                is_label = not isinstance(two[0], Tensor)
                return [row for kind in kinds for row in self._unit(two, kind.label if is_label else kind.content)]
            dims, padding = self._positions(one, two), self._unit(two, 1)
            parts = [self._unit(two, kind.label if two.dim() == 1 else kind.content) for kind in kinds]
            return torch.cat([_part(x, padding, dims, kind) for x, kind in zip(parts, kinds, strict=True)])

        other = self._rebuilt(self.alone, self._beside, rows)
        vars(other)["num_units"] = len(kinds)
        return other

    def _rebuilt(self, one: Any, two: Any, rows: Callable[[str, Any, Any], Any], place: str = "") -> Any:
        """The second of two batches of one form, with other rows."""
        try:
            if isinstance(two, Tensor | list) and self._hold_rows(one, two):
                return rows(place, one, two)
            if isinstance(two, Tensor):
                if (self._rows_per_unit, 2 * self._rows_per_unit) in zip(one.shape, two.shape, strict=True):
                    raise self._refusal(f"gives {place}, whose first dimension is not the rows: put them first")
                return two
            if isinstance(two, Mapping):
                other = copy.copy(two)
                for key in two:
                    other[key] = self._rebuilt(one[key], two[key], rows, f"{place}[{key!r}]")  # type: ignore[index]
                return other
            if isinstance(two, list | tuple):
                pairs = enumerate(zip(one, two, strict=True))
                values = [self._rebuilt(*pair, rows, f"{place}[{i}]") for i, pair in pairs]
                return type(two)(*values) if hasattr(two, "_fields") else type(two)(values)
            if hasattr(two, "__dict__") and not isinstance(two, type):
                other, dot = copy.copy(two), "." if place else ""
                for key, value in vars(two).items():
                    vars(other)[key] = self._rebuilt(vars(one)[key], value, rows, f"{place}{dot}{key}")
                return other
            return two
        except (AttributeError, KeyError, TypeError, ValueError):
            raise self._refusal(f"gives two batches of different form: {place or type(two).__name__}") from None

    def _hold_rows(self, one: Any, two: Any) -> bool:
        if isinstance(two, Tensor) and not (isinstance(one, Tensor) and one.dim() == two.dim() > 0):
            return False
        return len(one) == self._rows_per_unit and len(two) == 2 * self._rows_per_unit

    def _unit(self, value: Any, unit: int) -> Any:
        return value[unit * self._rows_per_unit : (unit + 1) * self._rows_per_unit]

    def _positions(self, one: Any, two: Any) -> list[int]:
        """Dimensions of a row's length; none where padding comes first, which nothing tells from the row."""
        if not isinstance(two, Tensor):
            return []
        dims = [dim for dim in range(1, two.dim()) if one.shape[dim] < two.shape[dim]]
        own = self._unit(two, 1)
        for dim in dims:
            own = own.narrow(dim, 0, one.shape[dim])
        return dims if _equal(own, one) else []

    def _refusal(self, what: str) -> PrivateTrainingError:
        return PrivateTrainingError(f"its probe() {what}", about=self._name)


def _part(x: Tensor, padding: Tensor, dims: list[int], kind: Kind) -> Tensor:
    for dim in dims if kind.length is not None else ():
        assert kind.length is not None
        shape = list(x.shape)
        shape[dim] -= kind.length
        behind = padding.narrow(dim, x.shape[dim] - 1, 1).expand(shape)
        x = torch.cat([x.narrow(dim, kind.start, kind.length), behind], dim)
    return x


def _equal(one: Any, two: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, two)
    if isinstance(one, list):
        return len(one) == len(two) and all(_equal(x, y) for x, y in zip(one, two, strict=True))
    return bool(one == two)
