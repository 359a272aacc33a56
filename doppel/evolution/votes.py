"""Private votes for candidates: each private text votes for those nearest to it, and noise hides each unit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NoReturn

import numpy as np
from numpy.typing import NDArray

from doppel.nearest import Whole, nearest, normalised, whole
from doppel.privacy.histogram import unit_sums
from doppel.privacy.release import NoisySums

#: Rows whose votes are held at a time, but for those of one unit.
_PART = 2**16


@dataclass(frozen=True)
class NoisyVotes(NoisySums):
    """Rounds of votes; :class:`NearestNeighbourHistogram` argues the sensitivity of their sums."""

    kind: ClassVar[str] = "gaussian_votes"


class NearestNeighbourHistogram:
    """The nearest-neighbour histogram of private texts: how many of them each candidate is nearest to (AugPE).

    It holds their embeddings and units. Nothing of it is printed, copied or written to disk.

    Formal guarantees:
        A row votes for the k candidates nearest to it. Its ballot has 1/√k at these k places and zero elsewhere: ℓ₂
        norm 1. Whom it votes for depends on its own embedding and label, and on the candidates, *to the last bit*
        (:mod:`doppel.nearest`).

        The ballot of a *unit* is the mean of its rows' ballots, of norm at most 1 by the triangle inequality
        (:func:`~doppel.privacy.histogram.unit_sums`, which sees all rows of a unit together). Adding or removing one
        unit, whatever it holds and however many rows it has, moves the vector of all sums by at most 1 in ℓ₂ norm: sums
        over parts of the units are added exactly. Gaussian noise of standard deviation σ on
        every sum is therefore one Gaussian release with noise multiplier σ (:class:`NoisyVotes`), for every k and
        any number of candidates. Counted in votes, √k times as large, a unit of one row moves k votes by 1, ℓ₂ norm √k,
        and the noise is σ√k.

        With labels a row votes among the candidates of its own label, and has no vote where there are none. That leaves
        the norm of its ballot as it is, so all labels together are the same one release: no parallel composition is
        claimed. Which candidates there are may depend on all that was released before, as in any adaptive composition.

    A row takes 4 bytes an entry, and 17 more; what else is needed does not grow with the rows.

    Args:
        parts: Embeddings in parts, each [n, D], all rows in turn; entries in [-1, 1]. A row that is not finite has no
            vote.
        units: Of each row.
        labels: Of each row; None: all rows vote among all candidates.

    Raises:
        ValueError: The embeddings have more than 2,048 entries, or lengths differ.
    """

    __slots__ = ("__has_vote", "__labels", "__names", "__units", "__vectors")

    def __init__(
        self,
        parts: Iterable[NDArray[np.floating]],
        units: Sequence[str],
        labels: Sequence[str | None] | None = None,
    ) -> None:
        known: dict[str, int] = {}
        codes = np.array([known.setdefault(unit, len(known)) for unit in units], dtype=np.int64)
        place_of = np.empty(len(codes), dtype=np.int64)
        place_of[np.argsort(codes, kind="stable")] = np.arange(len(codes))  # rows of a unit lie side by side
        self.__units, self.__has_vote = np.sort(codes), np.zeros(len(codes), dtype=bool)
        self.__vectors: Whole = np.empty((0, 0), dtype=np.int32)
        num = 0
        for part in parts:
            places, num = place_of[num : num + len(part)], num + len(part)
            if num > len(codes):
                break
            if not self.__vectors.size:
                self.__vectors = np.zeros((len(codes), part.shape[1]), dtype=np.int32)
            self.__has_vote[places] = np.isfinite(part).all(axis=1)
            self.__vectors[places] = whole(np.where(self.__has_vote[places, None], part, 0.0))
        if num != len(codes) or (labels is not None and len(labels) != len(codes)):
            raise ValueError(f"{len(codes)} units, but another number of embeddings or of labels")
        self.__names: dict[str, int] | None = None
        self.__labels = np.zeros(len(codes), dtype=np.int64)
        if labels is not None:
            self.__names = {}
            own = [self.__names.setdefault(str(label), len(self.__names)) for label in labels]
            self.__labels[place_of] = own

    def __repr__(self) -> str:
        return "NearestNeighbourHistogram(hidden)"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("private votes are not written to disk, copied or sent to a process")

    def sums(
        self,
        candidates_MD: NDArray[np.floating],
        labels: Sequence[str | None] | None = None,
        votes_each: int = 1,
    ) -> dict[str, float]:
        """Sum all votes, *without noise*: for :func:`doppel.privacy.histogram.add_noise` alone.

        Args:
            candidates_MD: Embeddings of the candidates, entries in [-1, 1].
            labels: Of the candidates, where rows have labels.
            votes_each: k.

        Returns:
            For each candidate, by its number as text; a multiple of 1/`GRID`. It has sensitivity 1.
        """
        names = None if labels is None else self.__names
        theirs = np.zeros(len(candidates_MD), dtype=np.int64)
        if names is not None and labels is not None:
            theirs[:] = [names.get(str(label), -1) for label in labels]
        candidates = normalised(candidates_MD)
        bins, weight = list(map(str, range(len(candidates)))), 1 / math.sqrt(votes_each)
        sums = dict.fromkeys(bins, 0.0)
        for rows in self._parts():
            of = self.__labels[rows] if names is not None else np.zeros(rows.stop - rows.start, dtype=np.int64)
            ballots: list[list[int]] = [[] for _ in of]
            for label in np.unique(theirs).tolist():
                own, places = np.flatnonzero((of == label) & self.__has_vote[rows]), np.flatnonzero(theirs == label)
                found = nearest(self.__vectors[rows][own], candidates[places], votes_each)
                for row, nearest_places in zip(own.tolist(), found, strict=True):
                    ballots[row] = places[nearest_places].tolist()
            vectors = ({bins[place]: weight for place in ballot} for ballot in ballots)
            for name, value in unit_sums(zip(map(str, self.__units[rows]), vectors, strict=True), bins).items():
                sums[name] += value
        return sums

    def _parts(self) -> Iterator[slice]:
        """Rows of some whole units each, in turn."""
        starts = np.flatnonzero(np.diff(self.__units, prepend=-1))
        kept = starts[np.flatnonzero(np.diff(starts // _PART, prepend=-1))]
        for start, stop in zip(kept.tolist(), [*kept[1:].tolist(), len(self.__units)], strict=True):
            yield slice(start, stop)
