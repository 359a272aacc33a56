"""A noised histogram: how often each of some public labels occurs among private units.

It is released of labels (1.5-stage), which prompts are drawn from; of the function types of trees, of topics, or of the
clusters of samples that are voted for, which samples are drawn by (`doppel.resampling`); and of votes for texts of a
public model (`doppel.evolution`). Each is one mechanism in the ledger, its noise part of the scope's budget.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from statistics import NormalDist
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from doppel.privacy.secret import KeyedStream

#: Sums are counted, noised and released in whole multiples of 1/GRID.
GRID = 2**24
#: Bytes of a stream that are drawn at a time; more than any number takes.
_BUFFER = 2**16
#: With which :func:`largest_noise` holds, and intervals of shares.
CONFIDENCE = 0.95
#: Standard deviations to either side of an interval, for each row by itself.
Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


class Bits(Protocol):
    """Where uniform numbers come from."""

    def getrandbits(self, k: int, /) -> int:
        """Return a number of k bits."""

    def randrange(self, stop: int, /) -> int:
        """Return a number below ``stop``."""


def largest_noise(num_bins: int) -> float:
    """Return the standard deviations that no bin's noise exceeds, with 95 % confidence (a union bound)."""
    return NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / num_bins)


def unit_sums(rows: Iterable[tuple[str, Mapping[str, float]]], bins: Iterable[str]) -> dict[str, float]:
    """Sum over the units of each unit's mean vector, whose L2 norm is at most 1.

    Formal guarantees:
        The vector of a row is cut to the bins, and scaled down to L2 norm 1 where it is longer. The vector of a unit is
        the mean over its rows, of norm at most 1 by the triangle inequality: k/m for a label of k of its m rows.
        One unit more or less changes the vector of no other unit, so the L2 sensitivity of the result is 1, whatever
        the unit holds. The mean is cut towards zero to whole multiples of 1/`GRID`, and shortened where rounding would
        have left it above 1: sums of whole numbers are exact.

    Args:
        rows: Unit and vector of each row, by label and of finite numbers: a function of this row and of public things.
        bins: Public labels, which must not come from the data: that a label occurs at all would leak.

    Returns:
        The sum for each bin, in the order of the bins; a multiple of 1/`GRID`.
    """
    sums = dict.fromkeys(bins, 0)
    of_unit: dict[str, dict[str, float]] = {}
    num_rows = Counter[str]()
    for unit, vector in rows:
        known = {label: value for label, value in vector.items() if label in sums}
        norm = max(1.0, math.hypot(*known.values()))
        added = of_unit.setdefault(unit, {})
        for label, value in known.items():
            added[label] = added.get(label, 0.0) + value / norm
        num_rows[unit] += 1
    for unit, added in of_unit.items():
        whole = {label: int(value / num_rows[unit] * GRID) for label, value in added.items()}
        while sum(n * n for n in whole.values()) > GRID * GRID:
            whole = {label: n - (n > 0) + (n < 0) for label, n in whole.items()}
        for label, n in whole.items():
            sums[label] += n
    return {label: n / GRID for label, n in sums.items()}


def add_noise(sums: Mapping[str, float], noise_multiplier: float, seed: int | None = None) -> dict[str, float]:
    """Return the sums with independent discrete Gaussian noise of variance sigma^2 on every bin.

    Formal guarantees:
        For sums of sensitivity 1 on the grid (`unit_sums`) this is one Gaussian release of noise multiplier sigma
        without subsampling (:mod:`.release`), on every bin, those without a unit too. The noise is the discrete
        Gaussian on the grid (Canonne, Kamath and Steinke, 2020), drawn exactly from a cryptographic stream, so no
        rounding tells anything. At so many grid points its privacy differs from the continuous one by < exp(-10^10).

    Args:
        sums: Histogram of sensitivity 1, in multiples of 1/`GRID`.
        noise_multiplier: sigma, above 0.
        seed: For tests only: a fixed seed voids the guarantee, and warns.
    """
    from doppel.privacy.secret import Secret  # needs torch, which who reads a histogram does not wait for

    if not noise_multiplier > 0:
        raise ValueError(f"noise_multiplier is {noise_multiplier}, but a private histogram needs noise above 0")
    stream = _Buffered(Secret(seed).stream("histogram"))
    scale = math.ceil(noise_multiplier * GRID)
    return {label: (round(value * GRID) + discrete_gaussian(stream, scale)) / GRID for label, value in sums.items()}


class _Buffered:
    """The same numbers as a stream gives, in a fifth of the time: a vocabulary has many bins.

    Args:
        stream: Nobody else may draw from it.
    """

    def __init__(self, stream: KeyedStream) -> None:
        self._stream, self._bytes, self._at = stream, b"", 0

    def getrandbits(self, k: int) -> int:
        """Return a number of k bits."""
        num_bytes = (k + 7) // 8
        if self._at + num_bytes > len(self._bytes):
            self._bytes, self._at = self._bytes[self._at :] + self._stream.randbytes(_BUFFER), 0
        self._at += num_bytes
        return int.from_bytes(self._bytes[self._at - num_bytes : self._at], "little") >> (8 * num_bytes - k)

    def randrange(self, stop: int) -> int:
        """Return a number below ``stop``, all equally likely."""
        k = stop.bit_length()
        while (number := self.getrandbits(k)) >= stop:
            pass
        return number


def discrete_gaussian(stream: Bits, scale: int) -> int:
    """Draw a whole number k with probability proportional to exp(-k^2 / 2 scale^2), scale >= 1.

    It is a discrete Laplace number, kept with the probability that makes it Gaussian (Canonne et al., 2020, algorithm
    3).
    """
    while True:
        k = _discrete_laplace(stream, scale + 1)
        # exp(-(|k| - scale^2 / t)^2 / (2 scale^2)) for t = scale + 1
        if bernoulli_exp(stream, (abs(k) * (scale + 1) - scale**2) ** 2, 2 * (scale * (scale + 1)) ** 2):
            return k


def _discrete_laplace(stream: Bits, scale: int) -> int:
    """A whole number k with probability proportional to exp(-|k| / scale) (algorithm 2)."""
    while True:
        low = stream.randrange(scale)
        if not bernoulli_exp(stream, low, scale):
            continue
        high = 0
        while bernoulli_exp(stream, 1, 1):
            high += 1
        k, is_negative = low + scale * high, stream.getrandbits(1)
        if k or not is_negative:  # one zero, not two
            return -k if is_negative else k


def bernoulli_exp(stream: Bits, numerator: int, denominator: int) -> bool:
    """Return toss a coin of probability exp(-numerator / denominator), exactly (algorithm 1)."""
    while numerator > denominator:
        if not bernoulli_exp(stream, 1, 1):
            return False
        numerator -= denominator
    k = 1
    while stream.randrange(k * denominator) < numerator:
        k += 1
    return k % 2 == 1


def normalise(sums: Mapping[str, float]) -> dict[str, float]:
    """Return probabilities proportional to the sums, negative ones taken for 0; uniform if none is above 0."""
    positive = {label: max(0.0, value) for label, value in sums.items()}
    total = sum(positive.values())
    return {label: value / total if total > 0 else 1.0 / len(sums) for label, value in positive.items()}
