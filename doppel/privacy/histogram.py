"""A noised histogram: how often each of some public labels occurs among private units."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from doppel.privacy.accounting import Accountant
from doppel.privacy.noise import Secret
from doppel.privacy.spec import PrivacySpec

KIND = "gaussian_histogram"


def shares(labels: Iterable[tuple[str, str | None]], bins: Sequence[str]) -> dict[str, float]:
    """Sum of the units' shares of each label; a unit weighs at most 1 in all.

    Formal guarantees:
        A unit with m rows, k of them of one label, adds k/m to that label: one utterance adds 1 to one bin. The shares
        of a unit are not negative and their sum is at most 1 (rows without a label, or with one that is not among the
        bins, count in m alone), so their L2 norm is at most 1. Adding or removing one unit changes the shares of no
        other unit; the sensitivity of the result is therefore 1 for every unit, whatever it holds.

    Args:
        labels: Unit and label of each row.
        bins: Public labels, which must not come from the data: that a label occurs at all would leak.

    Returns:
        The sum for each bin, in the order of the bins.
    """
    of_unit: dict[str, Counter[str | None]] = {}
    for unit, label in labels:
        of_unit.setdefault(unit, Counter())[label] += 1
    sums = dict.fromkeys(bins, 0.0)
    for counts in of_unit.values():
        num_rows = counts.total()
        for label, count in counts.items():
            if label in sums:
                sums[label] += count / num_rows
    return sums


def add_noise(sums: Mapping[str, float], noise_multiplier: float, seed: int | None = None) -> dict[str, float]:
    """The sums with independent N(0, sigma^2) on every bin, no less than 0.

    Formal guarantees:
        For sums of sensitivity 1 (`shares`) this is one Gaussian release of noise multiplier sigma without subsampling,
        `Mechanism(1.0, sigma, 1)`, on every bin, those without a unit too. Clamping at 0 is post-processing. The
        noise comes from the operating system's entropy; with the caveat on floating-point Gaussians of
        `doppel.privacy.noise`.

    Args:
        sums: Histogram of sensitivity 1.
        noise_multiplier: sigma, above 0.
        seed: For tests only: a fixed seed voids the guarantee, and warns.
    """
    if not noise_multiplier > 0:
        raise ValueError(f"noise_multiplier is {noise_multiplier}, but a private histogram needs noise above 0")
    stream = np.random.Generator(np.random.PCG64(Secret(seed).derive("histogram")))
    noise = stream.normal(0.0, noise_multiplier, len(sums))
    return {label: max(0.0, value + float(z)) for (label, value), z in zip(sums.items(), noise, strict=True)}


def normalise(sums: Mapping[str, float]) -> dict[str, float]:
    """Probabilities proportional to sums that are not negative; uniform if all are 0."""
    total = sum(sums.values())
    return {label: value / total if total > 0 else 1.0 / len(sums) for label, value in sums.items()}


def histogram_spec(
    noise_multiplier: float, num_units: int, target_epsilon: float, delta: float, accountant: Accountant, unit: str
) -> PrivacySpec:
    """The histogram's own line in the ledger: one release at q = 1, sensitivity 1, under the budget of its scope.

    Args:
        noise_multiplier: sigma.
        num_units: Number N of units that are counted.
        target_epsilon: Budget of the scope, as the training was given it; likewise the others.
    """
    return PrivacySpec(
        target_epsilon=target_epsilon,
        delta=delta,
        unit=unit,
        max_grad_norm=1.0,
        noise_multiplier=noise_multiplier,
        sample_rate=1.0,
        num_units=num_units,
        batch_size=num_units,
        accountant=accountant,
        stage_steps=(1,),
    )
