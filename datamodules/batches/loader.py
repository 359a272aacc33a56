"""A batch is a function of its number, and the number of a training's batch is the step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

Batch = TypeVar("Batch")


class UnitSampler(Protocol):
    """Says which units make up the batch of a step, such as :class:`doppel.privacy.sampling.PoissonSampler`."""

    def __len__(self) -> int:
        """Steps of an epoch."""

    def units_at(self, step: int) -> list[int]:
        """Return the units of the batch over all ranks: a function of the step, and the same on every rank."""


@dataclass(frozen=True)
class Batches(Generic[Batch]):
    """So many batches by their numbers, made when they are asked for."""

    make: Callable[[int], Batch]
    num: int

    def __len__(self) -> int:
        """Number of batches."""
        return self.num

    def __getitem__(self, number: int) -> Batch:
        """One of them."""
        if not 0 <= number < self.num:  # ends an iteration
            raise IndexError(number)
        return self.make(number)


class Loader(Generic[Batch]):
    """Yields the batches of a range of numbers, which is asked for anew at each iteration.

    In training these are the steps of an epoch, from the one on that the trainer has reached, whose ``global_step`` is
    all the state there is. So a resumed run, an iterator made ahead of time and an epoch cut short see batch s at step
    s. ``state_dict`` and ``load_state_dict`` tell Lightning that it may resume within an epoch.

    This is no ``DataLoader``, so Lightning leaves it alone: its sampler for several ranks repeats items until all have
    equally many, which would count some of them twice. Batches are made in this process, as they are asked for: a
    thousand utterances take some milliseconds.

    Args:
        make: Makes the batch of a number.
        numbers: Returns the range; its length does not change.
    """

    def __init__(self, make: Callable[[int], Batch], numbers: Callable[[], range]) -> None:
        self.make = make
        self.numbers = numbers

    def __len__(self) -> int:
        """Batches of an iteration."""
        return len(self.numbers())

    def __iter__(self) -> Iterator[Batch]:
        """Make them one by one."""
        return map(self.make, self.numbers())

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the trainer's step is the whole state."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore nothing: there is no state."""
