"""What leaves a private table: noisy marginals and choices, each paid for, kept and never drawn twice."""

from __future__ import annotations

import math
import re
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


#: How the record of a price begins; and the price in a record of an earlier version, which was kept beside the values.
_PRICE, _OWN_PRICE = '{"mu_squared"', re.compile(r'"mu_squared": ([^,}]+)[,}]')


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
        unit more or less, and count in a ledger as one Gaussian release with noise multiplier 1/μ. What a release costs
        is kept before it is drawn, and its values after it. A release that is read again costs what was kept, whatever
        is asked now, and its noise is not drawn a second time. One that was not drawn, or whose values nobody saw, is
        drawn at the price that was kept. One whose values a crash cut, so that some may be read, was lost: it costs as
        much, and is drawn anew from what is left, if there is any. So what is left is never more than μ² less all that
        was ever seen.

    Args:
        table: The private table.
        mu: μ of everything together.
        stream: Where choices and noise come from: one that was never used.
        done: Records of an interrupted run, in their order; `torn` is what stands of one that a crash cut.
        keep: Called with a record before anybody else sees it, ready for JSON: with what a release costs before it is
            drawn, and with its values.
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
        self._stream, self._done, self._keep, self._tell = stream, _releases_of(done), keep, tell
        self._pay_for_lost()

    def measure(self, clique: Clique, square: float) -> Measurement:
        """Release a marginal.

        Args:
            clique: Places of its columns.
            square: Its μ².
        """
        record = self._read_again("marginal", list(clique), square)
        if record is None:
            drawn = self.table.measure(clique, self._pay(square), self._stream)
            record = dict[str, Any](marginal=list(clique), sigma=drawn.sigma, counts=drawn.counts.tolist())
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
            mu = self._pay(square)
            scores = [
                self.table.error(clique, estimate) - round(GRID * bias)
                for clique, estimate, bias in zip(cliques, estimates, less, strict=True)
            ]
            record = dict[str, Any](choice=list(cliques[choose(self._stream, scores, GRID, epsilon_of_choice(mu))]))
            self._keep(record)
        return list(cliques).index(tuple(record["choice"]))

    def _pay(self, square: float) -> float:
        """μ of a release that is about to be drawn: it is kept before, or was by a run that was interrupted then."""
        if self._done:
            return self.budget.spend(_asked(self._done.pop(0).square, square))
        mu = self.budget.spend(square)
        self._keep({"mu_squared": mu * mu})
        return mu

    def _read_again(self, kind: str, value: object, square: float) -> dict[str, Any] | None:
        """The next release of an interrupted run, which costs what it cost; None where there is no more."""
        if not self._done or self._done[0].values is None:
            return None
        done = self._done.pop(0)
        assert done.values is not None
        if kind not in done.values or value not in (None, done.values[kind]):
            raise _other_error()
        self.budget.spend(_asked(done.square, square))
        self._pay_for_lost()
        return done.values

    def _pay_for_lost(self) -> None:
        """Pay for what was lost next, before anybody asks how much is left."""
        while self._done and self._done[0].is_lost:
            square = min(self._done.pop(0).square, self.budget.remaining)
            if square > 0:
                self.budget.spend(square)


@dataclass
class _Done:
    """A release of an interrupted run: its μ²; and its values, None where they are not there."""

    square: float
    values: dict[str, Any] | None = None
    is_lost: bool = False


def _releases_of(records: Iterable[dict[str, Any]]) -> list[_Done]:
    """What records say of releases: all but the last have values, or were lost."""
    done: list[_Done] = []
    for record in records:
        waits = bool(done) and done[-1].values is None and not done[-1].is_lost
        if "torn" in record:
            cut = record["torn"]
            if _PRICE.startswith(cut[: len(_PRICE)]):
                continue  # a price, for which nothing was drawn
            if waits:
                done[-1].is_lost = True
            elif own := _OWN_PRICE.search(cut):
                done.append(_Done(float(own[1]), is_lost=True))
            elif not cut.startswith('{"marginal"'):  # a choice, before its price: nobody knows what it cost
                done.append(_Done(math.inf, is_lost=True))
        elif "mu_squared" in record:
            if waits:
                done[-1].is_lost = True
            done.append(_Done(record["mu_squared"], record if len(record) > 1 else None))
        elif waits:
            done[-1].values = record
        else:
            raise _other_error()
    return done


def _asked(kept: float, square: float) -> float:
    """The μ² that was kept, if it is the one that is asked."""
    if not math.isclose(kept, square, rel_tol=1e-9):
        raise _other_error()
    return kept


def _other_error() -> DataError:
    return DataError("the releases that were kept are not those of this command: restore the file")
