"""The ε that estimated divergences of two sets of texts would amount to."""

from __future__ import annotations

import json
import sys

import numpy as np
from jsonargparse.typing import NonNegativeInt, PositiveInt

from commands.redaction.divergence import vector_sets
from datamodules.reading.columns import Columns
from doppel.errors import UserError
from doppel.redaction.comparison import Comparison
from doppel.redaction.divergence import Pair
from studies.redaction.hull import BANNER, best_line

#: Orders of the hull, from 1 on; the highest one, where the estimator is steady for any, is the document's.
_NUM_ORDERS, _LOWEST, _HIGHEST = 12, 1.1, 64.0


def epsilon(
    a: str,
    b: str,
    *,
    delta: float = 1e-5,
    k: PositiveInt = 40,
    encoder: list[str] | None = None,
    references: NonNegativeInt = 6,
    seed: int = 0,
    columns: Columns = Columns(),  # noqa: B008 (frozen)
) -> None:
    """The ε of an upper line over estimated divergences of many orders. It is an estimate and no guarantee.

    Args:
        a: A set, as of `python cli.py divergence`.
        b: The other set.
        delta: δ of the line.
        k: Neighbours of each text; orders go up to half of it.
        encoder: Sentence encoders; of each order the largest divergence counts.
        references: Pairs of normal sets that show what the estimator misses; 0 for the bare estimate.
        seed: Of all draws.
        columns: What the columns of the tables are called.

    Raises:
        DataError: A set cannot be read, or the sets cannot be compared.
        UserError: An option is out of range, or an encoder cannot be loaded.
    """
    if not 0 < delta < 1:
        raise UserError(f"is {delta:g}: give a probability between 0 and 1", about="--delta")
    highest = min(_HIGHEST, k / 2)
    if highest < 2 * _LOWEST:
        raise UserError(f"{k} neighbours serve too few orders for a line: give at least 10", about="--k")
    orders = (1.0, *map(float, np.geomspace(_LOWEST, highest, _NUM_ORDERS - 1)))
    made = [
        Comparison(Pair(first, second, k, progress=True), references, seed, progress=True)
        for _, first, second in vector_sets(a, b, encoder or [], columns)
    ]
    above = {order: max(max(each.divergences(order)) for each in made) for order in orders}
    line = best_line(above, delta)
    values = {
        "epsilon_estimate": line.epsilon_estimate,
        "delta": delta,
        "xi": line.xi,
        "rho": line.rho,
        "orders": {f"{order:.4g}": value for order, value in above.items()},
        "note": BANNER,
    }
    sys.stdout.write(f"{json.dumps(values, ensure_ascii=False)}\n")
