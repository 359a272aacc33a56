"""A noised histogram: how often each of some public labels occurs among private units.

Two are released: of the domains (1.5-stage), which prompts are drawn from, and of the function types of trees, which
trees are drawn by (`doppel.calibration`). Either is one mechanism in the ledger, its noise part of the scope's budget.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from doppel.privacy.accounting import Accountant
from doppel.privacy.noise import Secret
from doppel.privacy.spec import PrivacySpec

KIND = "gaussian_histogram"


def unit_sums(rows: Iterable[tuple[str, Mapping[str, float]]], bins: Iterable[str]) -> dict[str, float]:
    """Sum over the units of each unit's mean vector, whose L2 norm is at most 1.

    Formal guarantees:
        The vector of a row is cut to the bins, and scaled down to L2 norm 1 where it is longer. The vector of a unit is
        the mean over its rows, of norm at most 1 by the triangle inequality: one utterance of one label adds 1 to one
        bin, a unit with m rows, k of them of that label, k/m. Adding or removing one unit changes the vector of no
        other unit; the L2 sensitivity of the result is therefore 1 for every unit, whatever it holds.

    Args:
        rows: Unit and vector of each row, by label and of finite numbers: a function of this row and of public things.
        bins: Public labels, which must not come from the data: that a label occurs at all would leak.

    Returns:
        The sum for each bin, in the order of the bins.
    """
    sums = dict.fromkeys(bins, 0.0)
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
        for label, value in added.items():
            sums[label] += value / num_rows[unit]
    return sums


def add_noise(sums: Mapping[str, float], noise_multiplier: float, seed: int | None = None) -> dict[str, float]:
    """The sums with independent N(0, sigma^2) on every bin.

    Formal guarantees:
        For sums of sensitivity 1 (`unit_sums`) this is one Gaussian release of noise multiplier sigma without
        subsampling, `Mechanism(1.0, sigma, 1)`, on every bin, those without a unit too. The noise comes from the
        operating system's entropy; with the caveat on floating-point Gaussians of `doppel.privacy.noise`.

    Args:
        sums: Histogram of sensitivity 1.
        noise_multiplier: sigma, above 0.
        seed: For tests only: a fixed seed voids the guarantee, and warns.
    """
    if not noise_multiplier > 0:
        raise ValueError(f"noise_multiplier is {noise_multiplier}, but a private histogram needs noise above 0")
    stream = np.random.Generator(np.random.PCG64(Secret(seed).derive("histogram")))
    noise = stream.normal(0.0, noise_multiplier, len(sums))
    return {label: value + float(z) for (label, value), z in zip(sums.items(), noise, strict=True)}


def normalise(sums: Mapping[str, float]) -> dict[str, float]:
    """Probabilities proportional to the sums, negative ones taken for 0; uniform if none is above 0."""
    positive = {label: max(0.0, value) for label, value in sums.items()}
    total = sum(positive.values())
    return {label: value / total if total > 0 else 1.0 / len(sums) for label, value in positive.items()}


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
