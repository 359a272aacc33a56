"""How often values occur together in a table, counted over its units, exactly or with noise."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from doppel.privacy.histogram import GRID, discrete_gaussian

if TYPE_CHECKING:
    from doppel.privacy.secret import KeyedStream

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
#: Places of columns.
Clique = tuple[int, ...]
#: Public seed of the model that is fitted to releases. There is one for all, for what is released next, and at which
#: price, depends on the model.
MODEL_SEED = 1


@dataclass(frozen=True)
class Measurement:
    """A marginal that was released.

    Attributes:
        clique: Places of its columns.
        counts: Noisy counts of units, of the shape of the columns' sizes.
        sigma: Standard deviation of the noise of each.
    """

    clique: Clique
    counts: Floats
    sigma: float


@dataclass(frozen=True)
class Table:
    """Rows of a private table, each cell the place of a public value.

    Attributes:
        codes: int64 [rows, columns].
        weights: Of each row, in whole multiples of 1/`GRID`: int64 [rows].
        sizes: Values of each column.
        num_units: Units that the rows are of.
    """

    codes: Whole
    weights: Whole
    sizes: tuple[int, ...]
    num_units: int
    _counted: dict[Clique, Whole] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of_units(cls, codes: Sequence[Any], units: Sequence[str] | None, sizes: Sequence[int]) -> Table:
        """Build a table in which a unit of m rows weighs 1/m in each.

        Args:
            codes: Of each row, or of all rows one after the other.
            units: Whose each row is; None: each row is a unit of its own.
            sizes: Values of each column.
        """
        whole = np.asarray(codes, dtype=np.int64).reshape(-1, len(sizes))
        if units is None:
            return cls(whole, np.full(len(whole), GRID), tuple(sizes), len(whole))
        numbers: dict[str, int] = {}
        owner = np.fromiter((numbers.setdefault(unit, len(numbers)) for unit in units), np.int64, len(units))
        return cls(whole, (GRID // np.bincount(owner))[owner], tuple(sizes), len(numbers))

    def marginal(self, clique: Clique) -> Whole:
        """Return the exact counts of a marginal, never to be shown; counted once.

        Formal guarantees:
            A unit adds a vector of non-negative numbers with sum at most 1: each of its m rows adds 1/m, cut towards
            zero to the grid, to one count. So adding or removing one unit moves the counts of a marginal by at most 1
            in ℓ₁ norm, and so by at most 1 in ℓ₂ norm, whatever the unit holds. The sums are exact (whole numbers below
            2⁵³).

        Returns:
            In whole multiples of 1/`GRID`, of the shape of the columns' sizes.
        """
        if clique not in self._counted:
            shape = [self.sizes[place] for place in clique]
            cells = np.ravel_multi_index(tuple(self.codes[:, place] for place in clique), shape)
            counts = np.bincount(cells, weights=self.weights, minlength=math.prod(shape))
            self._counted[clique] = counts.astype(np.int64).reshape(shape)
            self._counted[clique].setflags(write=False)
        return self._counted[clique]

    def measure(self, clique: Clique, mu: float, stream: KeyedStream) -> Measurement:
        """Release a marginal with noise.

        Formal guarantees:
            A marginal has ℓ₂ sensitivity 1 (:meth:`marginal`); independent discrete Gaussian noise of standard
            deviation 1/μ on every count, also on those of no unit, makes it μ-GDP. The noise is drawn exactly on the
            grid of the counts; see :func:`~doppel.privacy.histogram.add_noise`.

        Args:
            clique: Places of its columns.
            mu: What it costs.
            stream: Where the noise comes from.
        """
        exact = self.marginal(clique)
        scale = math.ceil(GRID / mu)
        noise = np.array([discrete_gaussian(stream, scale) for _ in range(exact.size)], dtype=np.int64)
        return Measurement(clique, (exact + noise.reshape(exact.shape)) / GRID, scale / GRID)

    def error(self, clique: Clique, estimate: Floats) -> int:
        """Return the ℓ₁ distance between the exact counts of a marginal and an estimate of them, never to be shown.

        Formal guarantees:
            For an estimate that depends on releases alone, adding or removing one unit moves it by at most 1, that is
            `GRID`: by the triangle inequality, and :meth:`marginal`. It is exact, in whole numbers.

        Returns:
            In whole multiples of 1/`GRID`.
        """
        rounded = np.rint(estimate * GRID).astype(np.int64)
        return int(np.abs(self.marginal(clique) - rounded).sum())


def pairs(num_columns: int) -> list[Clique]:
    """Return all pairs of columns."""
    return list(itertools.combinations(range(num_columns), 2))


def shares(codes: Whole, sizes: Sequence[int], clique: Clique) -> Floats:
    """Return shares of values that occur together, of rows that may be seen."""
    return Table(codes, np.ones(len(codes), dtype=np.int64), tuple(sizes), len(codes)).marginal(clique) / len(codes)


def total_variation(ours: Whole, theirs: Whole, sizes: Sequence[int]) -> float:
    """Return the mean total variation over all pairs of columns between two tables of codes, both of them public."""
    cliques = pairs(len(sizes))
    apart = [0.5 * np.abs(shares(ours, sizes, c) - shares(theirs, sizes, c)).sum() for c in cliques]
    return float(np.mean(apart))
