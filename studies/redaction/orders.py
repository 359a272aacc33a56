"""What estimates of a divergence say where the truth is known.

    python -m studies.redaction orders --out docs/results/divergence.csv

Sets are drawn from two normal distributions in two dimensions that are one unit apart, so that D_α = α/2, which is
estimated for orders up to 64: as the neighbours say, which flattens, and with what they miss added. The ε of a line
above stands beside.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from commands.quality.frame import COLUMNS, write_csv
from doppel.redaction.comparison import Comparison
from doppel.redaction.divergence import Pair
from studies.redaction.hull import best_line

#: The document's orders go up to 64; so many neighbours make the highest one steady.
_ORDERS = (1.0, 1.5, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
_NEIGHBOURS = 128
_DELTA = 1e-5


def main(argv: Sequence[str] | None = None) -> None:
    """What estimates of many orders, and the ε of a line above them, say where the truth is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=2000, help="vectors in each set")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path, required=True, help="CSV file to write")
    options = parser.parse_args(argv)
    rows = [row for seed in options.seeds for row in _rows(options.num, seed)]
    write_csv(pd.DataFrame(rows, columns=COLUMNS).astype({"seed": "Int64"}), options.out)
    print(pd.DataFrame(rows).pivot_table("value", "metric", "setting", sort=False).round(3).to_string())


def _rows(num: int, seed: int) -> list[dict[str, Any]]:
    """What is estimated for one draw, beside the truth."""
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((2, num, 2))
    b[:, 0] += 1
    made = Comparison(Pair(a, b, _NEIGHBOURS), seed=seed)
    curves = {
        "truth": {order: order / 2 for order in _ORDERS},
        "as the neighbours say": {o: max(each.divergence() for each in made.uncorrected(o)) for o in _ORDERS},
        "with what they miss": {order: max(made.divergences(order)) for order in _ORDERS},
    }
    common = {"experiment": "divergence", "system": "redaction", "data": "normal, unit shift", "num_samples": num}
    rows = []
    for setting, curve in curves.items():
        values = {f"divergence@{order:g}": value for order, value in curve.items()}
        values["epsilon_estimate"] = best_line(curve, _DELTA).epsilon_estimate
        for metric, value in values.items():
            rows.append({**common, "setting": setting, "seed": seed, "metric": metric, "value": round(value, 4)})
    return rows
