"""AIM: measure the marginals that a model knows least, fit it to them, and again (McKenna et al., 2022, *AIM: an
adaptive and iterative mechanism for differentially private synthetic data*)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from doppel.tables.marginals import Measurement, pairs
from doppel.tables.mixture import Mixture
from doppel.tables.releases import Releases

#: Share of μ² that goes to the single columns; of the rest, so many rounds are planned with equal shares.
ONE_WAY, NUM_ROUNDS = 0.1, 20
#: Share of a round that goes to the choice of its pair.
CHOICE = 0.1
#: A round that changed the model by no more than its noise makes the later ones so many times as large.
GROWTH = 4.0
#: Steps of the last fit.
_LAST_STEPS = 300


def aim(releases: Releases) -> Mixture:
    """Measure all single columns, then pairs, the worst fitted first.

    Each round chooses the pair whose counts are farthest (ℓ₁) from those of the model, less what its noise alone would
    make, measures it and fits the model again. If that changed the model by no more than noise would, later rounds get
    more of the budget and less noise. The last round takes all that is left.

    Formal guarantees:
        Of the table this asks for releases alone, and each depends on the earlier ones; see :class:`Releases`. The
        model is post-processing.

    Args:
        releases: Of the private table; all of its budget is used.

    Returns:
        The model, fitted to all releases.
    """
    table, budget = releases.table, releases.budget
    model = Mixture(table.sizes)
    total, num_columns = budget.remaining, len(table.sizes)
    candidates = pairs(num_columns)
    for place in range(0 if budget.is_used_up else num_columns):
        releases.measure((place,), (ONE_WAY if candidates else 1.0) * total / num_columns)
    model.start_from(releases.measurements)
    model.fit(releases.measurements, table.num_units)
    planned = budget.remaining / NUM_ROUNDS
    is_last = not candidates
    while not (is_last or budget.is_used_up):
        is_last = budget.remaining < 2 * planned
        square = budget.remaining if is_last else planned
        sigma = 1 / math.sqrt((1 - CHOICE) * square)
        before = [table.num_units * shares for shares in model.shares(candidates)]
        noise = [math.sqrt(2 / math.pi) * sigma * counts.size for counts in before]  # its expected ℓ₁ norm
        place = releases.choose(candidates, before, noise, CHOICE * square)
        if budget.is_used_up:  # a crash has lost the last marginal
            break
        releases.measure(candidates[place], budget.remaining if is_last else (1 - CHOICE) * square)
        model.fit(releases.measurements, table.num_units)
        after = table.num_units * model.shares([candidates[place]])[0]
        if abs(after - before[place]).sum() <= noise[place]:
            planned *= GROWTH
    model.fit(releases.measurements, table.num_units, steps=_LAST_STEPS)
    return model


def refit(sizes: Sequence[int], num_units: int, measurements: Sequence[Measurement]) -> Mixture:
    """Fit the model of :func:`aim` again, from its releases, without the table.

    Args:
        sizes: Values of each column.
        num_units: N, which is public.
        measurements: All marginals, in the order in which they were released.
    """
    model = Mixture(sizes)
    model.start_from(measurements[: len(sizes)])
    for number in range(len(sizes), len(measurements) + 1):
        model.fit(measurements[:number], num_units)
    model.fit(measurements, num_units, steps=_LAST_STEPS)
    return model
