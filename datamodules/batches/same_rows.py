"""Whether rows that were collated together are the rows that were collated one by one, each in its place."""

from __future__ import annotations

import hashlib
import itertools
import json
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

ORDER = (
    "rows come in another order than they were given, as if sorted by length for pack_padded_sequence, so that a row "
    "would be clipped as another unit's: keep the order, for padding needs none"
)
NUMBER = "row i of a batch must be made of row i alone, padded if need be: leave out, add and join no rows"
VALUES = (
    "what becomes of a row depends on the rows beside it: take no length, mean, scale or vocabulary of the batch, and "
    "cut no row by another one's length"
)
TYPE = "the type of what becomes of a row depends on the rows beside it: name it, as in torch.tensor(ids, dtype=…)"
PADDING = "what fills up a row depends on the rows beside it: fill up with one constant"
PACKED = "positions come before rows in a PackedSequence: give padded rows with their lengths, and mask the padding"
_DEEPEST = 16
#: Collates some rows of a batch, by their index.
Together = Callable[[list[int]], Any]


class RowsDifferError(Exception):
    """They are not.

    Args:
        why: In words, without content.
        place: The part of the batch, such as ``['labels']``.
        index: Of a row among those of the batch; None where it is none in particular.
    """

    def __init__(self, why: str, place: str, index: int | None = None) -> None:
        super().__init__(why)
        self.why, self.place, self.index = why, place, index


class SameRows:
    """Compares batches with their rows, and remembers what each part of a batch is padded with.

    Formal guarantees:
        A batch is walked through, by mappings, lists, tuples and attributes, down to tensors, arrays, lists of rows and
        single values. A part has its rows along the first dimension that is 1 for each row alone and their number for
        all of them. Row i of it must hold what row i gave alone, of the same type: all of it, at the beginning or the
        end of each dimension, equal up to rounding. What is around that must be the padding of the part, one value in
        all batches; or, as of positions and masks, what is around the row as well if no other rows are beside it than
        those that give the batch its size. A part without such a dimension must hold what it holds for each row alone.

        So nothing but padding, and the size of the batch, tells a row of another one. What stands in the padding is
        left to the model, which must not look at it.
    """

    def __init__(self) -> None:
        self._padding: dict[str, object] = {}

    def check(self, batch: Any, alone: Sequence[Any], together: Together) -> None:
        """Compare a batch with its rows.

        Args:
            batch: What ``collate`` made of two rows or more.
            alone: What it made of each of them alone.
            together: Collates some of them, by their index.

        Raises:
            RowsDifferError: They differ.
        """
        self._walk(batch, alone, together, "")

    def _walk(self, batch: Any, alone: Sequence[Any], together: Together, place: str) -> None:
        """Compare a part of a batch; ``together`` gives the same part of some rows."""
        for index, one in enumerate(alone):
            if type(one) is not type(batch):
                raise RowsDifferError(TYPE, place, index)
        if isinstance(batch, PackedSequence):
            raise RowsDifferError(PACKED, place)
        if isinstance(batch, np.ndarray) and _numbers(batch) is None:  # of texts, or of objects
            return self._walk(list(batch), [list(one) for one in alone], lambda some: list(together(some)), place)
        if isinstance(batch, Tensor | np.ndarray):
            return self._tensors(_tensor(batch), [_tensor(one) for one in alone], together, place)
        if isinstance(batch, list | tuple) and any(len(one) != len(batch) for one in alone):
            if len(batch) != len(alone) or any(len(one) != 1 for one in alone):
                raise RowsDifferError(NUMBER, place)
            return self._rows(batch, [one[0] for one in alone], lambda some: together(some)[0], place)
        children = _children(batch) if place.count("[") + place.count(".") < _DEEPEST else {}
        if not children:
            return self._rows([batch] * len(alone), alone, together, place)
        below = [_children(one) for one in alone]
        if any(set(one) != set(children) for one in below):
            raise RowsDifferError(VALUES, place)
        for name, child in children.items():
            of_some = partial(_child, together, name)
            self._walk(child, [one[name] for one in below], of_some, place + name)

    def _tensors(self, batch: Tensor, alone: Sequence[Tensor], together: Together, place: str) -> None:
        """Find the dimension along which the rows are."""
        if any(one.dim() != batch.dim() for one in alone):
            raise RowsDifferError(NUMBER, place)
        along = [d for d, size in enumerate(batch.shape) if size == len(alone) and all(x.shape[d] == 1 for x in alone)]
        failed = None
        for d in along:
            if {one.dtype for one in alone} == {batch.dtype} and _is_joined(batch, alone, d):
                return  # nothing is padded
            try:
                first = partial(_first, together, d)
                return self._rows(batch.unbind(d), [one.select(d, 0) for one in alone], first, place)
            except RowsDifferError as error:
                failed = failed or error
        if failed is not None:
            raise failed
        if batch.dim() and all(one.shape[0] != batch.shape[0] for one in alone):
            raise RowsDifferError(NUMBER, place)
        self._rows([batch] * len(alone), alone, together, place)

    def _rows(self, rows: Sequence[Any], alone: Sequence[Any], first: Together, place: str) -> None:
        """Compare row by row; ``first`` gives the first row of some that are collated together."""
        owns = [_numbers(one) for one in alone]
        for index, (row, own) in enumerate(zip(map(_numbers, rows), owns, strict=True)):
            if own is None or row is None:
                why = None if content_text(rows[index]) == content_text(alone[index]) else VALUES
            elif own.dtype != row.dtype and (own.numel() or isinstance(alone[index], Tensor)):
                why = TYPE
            else:
                own = own.to(row.dtype)  # of an empty list, which has no type
                why = self._difference(row, own, place)
                if why is PADDING and _is_so_with_fewer(index, row, owns, first):
                    why = None
            if why is VALUES and _are_elsewhere(rows, alone):
                raise RowsDifferError(ORDER, place)
            if why is not None:
                raise RowsDifferError(why, place, index)

    def _difference(self, row: Tensor, own: Tensor, place: str) -> str | None:
        why = VALUES
        for corner in _corners(row, own):
            if row.shape == own.shape:
                return None
            around = torch.ones(row.shape, dtype=torch.bool, device=row.device)
            around[corner] = False
            rest = row[around]
            value = rest[0].item() if len(rest) else None
            is_one = not len(rest) or _is_close(rest, rest[:1].expand_as(rest))
            if is_one and repr(value) == repr(self._padding.setdefault(place, value)):  # by repr: nan is nan
                return None
            why = PADDING
        return why


def _is_so_with_fewer(index: int, row: Tensor, owns: Sequence[Tensor | None], first: Together) -> bool:
    """Whether a row is the same beside no others than those that give the batch its size."""
    longest = []
    for d, size in enumerate(row.shape):
        reaching = [j for j, own in enumerate(owns) if own is not None and own.dim() > d and own.shape[d] == size]
        if not reaching:
            return False
        longest += [] if index in reaching else reaching[:1]
    other = _numbers(first([index, *dict.fromkeys(longest)]))
    return other is not None and other.shape == row.shape and _is_close(row, other)


def _are_elsewhere(rows: Sequence[Any], alone: Sequence[Any]) -> bool:
    """Whether each row is found, though not in its place; a part that all rows share has no places."""
    return rows[0] is not rows[-1] and all(any(_holds(row, own) for row in rows) for own in alone)


def _holds(row: Any, own: Any) -> bool:
    numbers, others = _numbers(row), _numbers(own)
    if numbers is None or others is None:
        return content_text(row) == content_text(own)
    return next(_corners(numbers, others), None) is not None


def _corners(row: Tensor, own: Tensor) -> Iterator[tuple[slice, ...]]:
    """Where a row holds all that it gave alone: at the beginning or the end of each dimension."""
    if row.dim() != own.dim() or any(long < short for long, short in zip(row.shape, own.shape, strict=True)):
        return
    starts = [{0, long - short} for long, short in zip(row.shape, own.shape, strict=True)]
    for start in itertools.product(*starts):
        corner = tuple(slice(begin, begin + size) for begin, size in zip(start, own.shape, strict=True))
        if _is_close(row[corner], own):
            yield corner


def _is_close(one: Tensor, other: Tensor) -> bool:
    """Equal, or up to rounding in proportion to the largest entry."""
    if torch.equal(one, other):
        return True
    if one.dtype != other.dtype or not (other.is_floating_point() or other.is_complex()):
        return False
    finite = other[other.isfinite()]
    precision = torch.finfo(other.dtype).eps
    bound = precision * (64 if precision < 1e-6 else 4) * (float(finite.abs().max()) if len(finite) else 0.0)
    return torch.allclose(one, other, rtol=0.0, atol=bound, equal_nan=True)


def _is_joined(batch: Tensor, alone: Sequence[Tensor], d: int) -> bool:
    sizes = {one.shape for one in alone}
    return len(sizes) == 1 and torch.equal(torch.cat(list(alone), d), batch)


def _children(value: Any) -> dict[str, Any]:
    """What a part of a batch consists of, by how one writes it; nothing if it is a value of its own."""
    if isinstance(value, Mapping):
        return {f"[{key!r}]": item for key, item in value.items()}
    if isinstance(value, list | tuple):
        return {f"[{i}]": item for i, item in enumerate(value)}
    if is_dataclass(value) and not isinstance(value, type):
        return {f".{field.name}": getattr(value, field.name) for field in fields(value)}
    known = {} if isinstance(value, type | np.generic) else getattr(value, "__dict__", {})
    return {f".{key}": item for key, item in known.items()}


def _child(together: Together, name: str, some: list[int]) -> Any:
    return _children(together(some))[name]


def _first(together: Together, d: int, some: list[int]) -> Tensor:
    return _tensor(together(some)).select(d, 0)


def _tensor(value: Tensor | NDArray[Any]) -> Tensor:
    if not isinstance(value, Tensor):
        return torch.as_tensor(np.array(value))  # a copy, for not every array is writable
    if value.is_nested:
        return torch.nested.to_padded_tensor(value.detach(), 0.0)
    return value.detach() if value.layout == torch.strided else value.detach().to_dense()


def _numbers(value: Any) -> Tensor | None:
    """A row as a tensor; None where it is none, such as a text. Lists of numbers are one."""
    if isinstance(value, Tensor):
        return _tensor(value)
    try:
        array = np.asarray(value) if isinstance(value, list | tuple | np.ndarray | np.generic | int | float) else None
    except ValueError:  # lists of several lengths
        return None
    return _tensor(array) if array is not None and array.dtype.kind in "biufc" else None


def content_text(value: object, in_full: bool = True) -> str:
    """A row as text, for a hash; objects that JSON cannot say by their pickle, or without ``in_full`` by their type."""

    def digest(value: object) -> Any:
        content = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
        if isinstance(content, np.ndarray | np.generic) and content.dtype != object:
            return [str(content.dtype), str(content.shape), hashlib.sha256(content.tobytes()).hexdigest()]
        if isinstance(value, Mapping):
            return dict(value)
        if not in_full:
            return type(value).__name__
        return [type(value).__name__, hashlib.sha256(pickle.dumps(value)).hexdigest()]

    return json.dumps(value, sort_keys=True, default=digest)
