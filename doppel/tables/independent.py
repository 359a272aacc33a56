"""Each column by itself: what a private table costs least, and what AIM must beat."""

from __future__ import annotations

from collections.abc import Sequence

from doppel.tables.marginals import Measurement
from doppel.tables.mixture import Mixture
from doppel.tables.releases import Releases


def independent(releases: Releases) -> Mixture:
    """Measure all single columns; rows are drawn column by column.

    Formal guarantees:
        As of :class:`Releases`: for d columns each is μ/√d-GDP, or less where one was lost.

    Args:
        releases: Of the private table; all of its budget is used.
    """
    num_columns = len(releases.table.sizes)
    for place in range(num_columns):
        if releases.budget.is_used_up:  # a crash has lost the last column
            break
        releases.measure((place,), releases.budget.remaining / (num_columns - place))
    return refit(releases.table.sizes, releases.table.num_units, releases.measurements)


def refit(sizes: Sequence[int], num_units: int, measurements: Sequence[Measurement]) -> Mixture:
    """Fit the model of :func:`independent` again, from its releases, without the table."""
    model = Mixture(sizes, num_components=1)
    model.start_from(measurements)
    model.fit(measurements, num_units, steps=300)
    return model
