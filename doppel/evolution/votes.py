"""Private votes for candidates: each private text votes for those nearest to it, and noise hides each unit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from doppel.privacy.accounting import GaussianRelease
from doppel.privacy.histogram import add_noise, unit_sums

Floats = NDArray[np.float64]
#: What near means: the smallest angle, or the smallest distance.
Nearness = Literal["cosine", "l2"]
#: Entries of embeddings are whole multiples of 1/_WHOLE, so that sums of their products are exact.
_WHOLE = 2.0**20
#: Entries of the largest embedding: three sums of so many products are whole numbers below 2⁵³.
_MAX_DIMENSIONS = 2**11
#: Scores that are held at a time.
_PART = 2**24


@dataclass(frozen=True)
class NoisyVotes(GaussianRelease):
    """Rounds of votes, each with noise; :class:`Electorate` argues the sensitivity of its sums."""

    kind: ClassVar[str] = "gaussian_votes"

    def release(self, sums: Mapping[str, float], seed: int | None = None) -> dict[str, float]:
        """The noisy sums of one round, see :func:`~doppel.privacy.histogram.add_noise`."""
        return add_noise(sums, self.noise_multiplier, seed)


class Electorate:
    """The private texts as embeddings, each with its unit. Nothing of it is printed, copied or written to disk.

    Formal guarantees:
        A row votes for the k candidates nearest to it. Its ballot has 1/√k at these k places and zero elsewhere: ℓ₂
        norm 1. Whom it votes for depends on its own embedding and label, and on the candidates, *to the last bit*:
        entries are cut to [-1, 1] and rounded to multiples of 2⁻²⁰, each by itself. So products and sums are whole
        numbers below 2⁵³, exact in float64 in whatever order they are added, and no row changes another's ballot by
        being in one matrix with it, as rounding would where two candidates are about as near.

        The ballot of a *unit* is the mean of its rows' ballots, of norm at most 1 by the triangle inequality
        (:func:`~doppel.privacy.histogram.unit_sums`). Adding or removing one unit, whatever it holds and however many
        rows it has, moves the vector of all sums by at most 1 in ℓ₂ norm. Gaussian noise of standard deviation σ on
        every sum is therefore one Gaussian release with noise multiplier σ (:class:`NoisyVotes`), for every k and
        any number of candidates. Counted in votes, √k times as large, a unit of one row moves k votes by 1, ℓ₂ norm √k,
        and the noise is σ√k.

        With labels a row votes among the candidates of its own label, and has no vote where there are none. That leaves
        the norm of its ballot as it is, so all labels together are the same one release: no parallel composition is
        claimed. Which candidates there are may depend on all that was released before, as in any adaptive composition.

    Args:
        vectors_ND: Embeddings, entries in [-1, 1]. A row that is not finite has no vote.
        units: Of each row.
        labels: Of each row; None: all rows vote among all candidates.

    Raises:
        ValueError: The embeddings have more than 2,048 entries, or lengths differ.
    """

    __slots__ = ("__has_vote", "__labels", "__units", "__vectors")

    def __init__(
        self, vectors_ND: NDArray[np.floating], units: Sequence[str], labels: Sequence[str | None] | None = None
    ) -> None:
        if vectors_ND.shape[1] > _MAX_DIMENSIONS:
            raise ValueError(f"embeddings of {vectors_ND.shape[1]} entries: give at most {_MAX_DIMENSIONS}")
        if len(units) != len(vectors_ND) or (labels is not None and len(labels) != len(vectors_ND)):
            raise ValueError(f"{len(vectors_ND)} embeddings, but {len(units)} units or another number of labels")
        self.__has_vote = np.isfinite(vectors_ND).all(axis=1)
        self.__vectors = whole(np.where(self.__has_vote[:, None], vectors_ND, 0.0))
        self.__units, self.__labels = list(units), labels

    def __repr__(self) -> str:
        return "Electorate(hidden)"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("private votes are not written to disk, copied or sent to a process")

    def sums(
        self,
        candidates_MD: NDArray[np.floating],
        labels: Sequence[str | None] | None = None,
        votes_each: int = 1,
        nearness: Nearness = "cosine",
    ) -> dict[str, float]:
        """The sums of all ballots, *without noise*: for :func:`doppel.privacy.histogram.add_noise`, and nobody else.

        Args:
            candidates_MD: Embeddings of the candidates, entries in [-1, 1].
            labels: Of the candidates, where rows have labels.
            votes_each: k.
            nearness: What near means.

        Returns:
            For each candidate, by its number as text; a multiple of 1/`GRID`. It has sensitivity 1.
        """
        ballots = self._ballots(normalised(candidates_MD, nearness), labels, votes_each, nearness)
        weight = 1 / math.sqrt(votes_each)
        vectors = ({str(place): weight for place in ballot} for ballot in ballots)
        return unit_sums(zip(self.__units, vectors, strict=True), map(str, range(len(candidates_MD))))

    def _ballots(
        self, candidates_MD: Floats, labels: Sequence[str | None] | None, votes_each: int, nearness: Nearness
    ) -> list[list[int]]:
        """Places of the candidates that each row votes for."""
        rows = np.arange(len(self.__vectors))
        if self.__labels is None or labels is None:
            groups = [(rows, np.arange(len(candidates_MD)))]
        else:
            own = np.array([str(label) for label in self.__labels], dtype=object)
            theirs = np.array([str(label) for label in labels], dtype=object)
            groups = [(rows[own == label], np.flatnonzero(theirs == label)) for label in dict.fromkeys(theirs)]
        ballots: list[list[int]] = [[] for _ in rows]
        for of, places in groups:
            found = nearest(self.__vectors[of], candidates_MD[places], votes_each, nearness)
            for row, own_places in zip(of, found, strict=True):
                ballots[row] = places[own_places].tolist() if self.__has_vote[row] else []
        return ballots


def whole(vectors_ND: NDArray[np.floating]) -> Floats:
    """Vectors as whole numbers, multiples of 2⁻²⁰ of entries in [-1, 1]; each entry by itself."""
    return np.rint(np.clip(np.asarray(vectors_ND, dtype=np.float64), -1.0, 1.0) * _WHOLE)


def normalised(vectors_MD: NDArray[np.floating], nearness: Nearness) -> Floats:
    """Public vectors as whole numbers: for angles of norm 1 each, which the mean of several embeddings has not."""
    vectors = np.asarray(vectors_MD, dtype=np.float64)
    if nearness == "cosine":
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return whole(vectors)


def nearest(rows_ND: Floats, candidates_MD: Floats, k: int, nearness: Nearness = "cosine") -> Iterator[list[int]]:
    """The k candidates nearest to each row, of equally near ones the first; all of them where there are fewer.

    Scores are ⟨x, c⟩ for angles, which a row's own length does not change, and 2⟨x, c⟩ - ‖c‖² for distances. Both are
    exact (:class:`Electorate`).

    Args:
        rows_ND: Of :func:`whole`.
        candidates_MD: Of :func:`normalised`.
        k: How many.
        nearness: What near means.

    Yields:
        Places of the candidates, for each row.
    """
    squares_M = np.einsum("md,md->m", candidates_MD, candidates_MD)
    part = max(1, _PART // max(1, len(candidates_MD)))
    for start in range(0, len(rows_ND), part):
        scores = rows_ND[start : start + part] @ candidates_MD.T
        scores = scores if nearness == "cosine" else 2.0 * scores - squares_M
        if k == 1:
            yield from scores.argmax(axis=1)[:, None].tolist()  # the first of equal ones
        else:
            yield from np.argsort(-scores, axis=1, kind="stable")[:, :k].tolist()
