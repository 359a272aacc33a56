"""What leaves a private table: noisy marginals and choices, each paid for, kept and never drawn twice."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from doppel.errors import DataError
from doppel.privacy.gdp import GaussianBudget, choose, epsilon_of_choice
from doppel.privacy.histogram import GRID
from doppel.privacy.release import GaussianRelease
from doppel.tables.marginals import Clique, Floats, Measurement, Table

if TYPE_CHECKING:
    from doppel.privacy.secret import KeyedStream


@dataclass(frozen=True)
class NoisyMarginals(GaussianRelease):
    """All that is measured of one table, which :class:`Releases` keeps within the cost of one Gaussian release."""

    kind: ClassVar[str] = "gaussian_marginals"

    def draw(self, table: Table, stream: KeyedStream, **more: Any) -> Releases:
        """Return what draws marginals and choices of μ = 1/σ together; ``more`` as of :class:`Releases`."""
        return Releases(table, 1 / self.noise_multiplier, stream, **more)


class Releases:
    """Draws each release once, or reads it again where an interrupted run has drawn it.

    Formal guarantees:
        A marginal with Gaussian noise of standard deviation σ is 1/σ-GDP (:meth:`Table.measure`); a choice among errors
        of sensitivity 1 (:meth:`Table.error`) by the exponential mechanism is μ-GDP by
        :func:`~doppel.privacy.gdp.epsilon_of_choice`. What is asked for, and with how much noise, may depend on earlier
        releases alone; the sum of squares stays within μ² (:class:`GaussianBudget`). So all together are μ-GDP for one
        unit more or less, and count in a ledger as one Gaussian release with noise multiplier 1/μ. A release that is
        read again costs what its record says that it cost, whatever is asked now, and its noise is not drawn a second
        time: so what is left is never more than μ² less all that was ever drawn.

    Args:
        table: The private table.
        mu: μ of everything together.
        stream: Where choices and noise come from: one that was never used.
        done: Records of an interrupted run, in their order.
        keep: Called with the record of a release before anybody else sees it; its values are ready for JSON.
        tell: Called with the share of μ² that is used, after each release.

    Attributes:
        budget: What is left.
        measurements: Marginals that were released, in their order.
    """

    def __init__(
        self,
        table: Table,
        mu: float,
        stream: KeyedStream,
        done: Iterable[dict[str, Any]] = (),
        keep: Callable[[dict[str, Any]], None] = lambda record: None,
        tell: Callable[[float], None] = lambda share: None,
    ) -> None:
        self.table, self.budget = table, GaussianBudget(mu)
        self.measurements: list[Measurement] = []
        self._stream, self._done, self._keep, self._tell = stream, list(done), keep, tell

    def measure(self, clique: Clique, square: float) -> Measurement:
        """Release a marginal.

        Args:
            clique: Places of its columns.
            square: Its μ².
        """
        record = self._read_again("marginal", list(clique), square)
        if record is None:
            mu = self.budget.spend(square)
            drawn = self.table.measure(clique, mu, self._stream)
            counts = drawn.counts.tolist()
            record = dict[str, Any](marginal=list(clique), mu_squared=mu * mu, sigma=drawn.sigma, counts=counts)
            self._keep(record)
        self.measurements.append(Measurement(clique, np.array(record["counts"]), record["sigma"]))
        self._tell(1 - self.budget.remaining / self.budget.mu**2)
        return self.measurements[-1]

    def choose(
        self, cliques: Sequence[Clique], estimates: Sequence[Floats], less: Sequence[float], square: float
    ) -> int:
        """Release which marginal is far from its estimate.

        Args:
            cliques: Marginals to choose from.
            estimates: Of their counts; functions of earlier releases.
            less: What is taken off the ℓ₁ error of each, likewise.
            square: μ² of the choice.

        Returns:
            Its place in ``cliques``.
        """
        record = self._read_again("choice", None, square)
        if record is None:
            mu = self.budget.spend(square)
            scores = [
                self.table.error(clique, estimate) - round(GRID * bias)
                for clique, estimate, bias in zip(cliques, estimates, less, strict=True)
            ]
            place = choose(self._stream, scores, GRID, epsilon_of_choice(mu))
            record = dict[str, Any](choice=list(cliques[place]), mu_squared=mu * mu)
            self._keep(record)
        return list(cliques).index(tuple(record["choice"]))

    def _read_again(self, kind: str, value: object, square: float) -> dict[str, Any] | None:
        """The next record of an interrupted run, which costs what it cost; None where there is no more."""
        if not self._done:
            return None
        record = self._done.pop(0)
        is_same = kind in record and value in (None, record[kind])
        if not is_same or not math.isclose(record.get("mu_squared", 0), square, rel_tol=1e-9):
            raise DataError("the releases that were kept are not those of this command: restore the file")
        self.budget.spend(record["mu_squared"])
        return record
