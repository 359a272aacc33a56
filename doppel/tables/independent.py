"""Each column by itself: what a private table costs least, and what AIM must beat."""

from __future__ import annotations

from doppel.tables.mixture import Mixture
from doppel.tables.releases import Releases


def independent(releases: Releases, seed: int = 1) -> Mixture:
    """Measure all single columns; rows are drawn column by column.

    Formal guarantees:
        As of :class:`Releases`: for d columns each is μ/√d-GDP.

    Args:
        releases: Of the private table; all of its budget is used.
        seed: Public seed of the rows.
    """
    total, num_columns = releases.budget.remaining, len(releases.table.sizes)
    for place in range(num_columns):
        releases.measure((place,), total / num_columns)
    model = Mixture(releases.table.sizes, num_components=1, seed=seed)
    model.start_from(releases.measurements)
    model.fit(releases.measurements, releases.table.num_units, steps=300)
    return model
