"""Trees drawn from an over-sample, so that function types occur in them as often as in the private trees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from commands.privacy.histogram import release
from doppel.calibration import draw, pool_bins, projected_weights, tree_matrix, tree_vector
from doppel.errors import DataError, UserError
from doppel.files import read_json_lines, write_json, write_json_lines
from doppel.lispress import is_valid


def calibrate(
    stage_dir: Path, *, pool: Path, out: Path, num_samples: int, seed: int | None = None, exact: bool = False
) -> None:
    """Trees drawn from an over-sample, so that function types occur in them as often as in the private trees.

    The shares of the function types are released once, with the noise that the trained stage announced
    (histogram_noise_multiplier), as one mechanism in the ledger. They lie in STAGE_DIR/marginals.json and are read
    there by whoever samples from that model again. Which types are counted comes from the pool, which the private model
    wrote. The weights of the trees are as near to uniform as the shares allow, up to their noise; trees that are not
    well-formed are left out. What was done stands in OUT.calibration.json.

    Args:
        stage_dir: Folder of the trained tree model, RUN/parse_tree.
        pool: JSON lines of trees that the model wrote; twenty times as many as are drawn is a good number.
        out: JSON lines of the drawn trees to write, in the order of the pool.
        num_samples: Trees to draw.
        seed: Seed of the draw, never of the noise.
        exact: No noise: NOT PRIVATE, which the ledger and the report then say.

    Raises:
        UserError: The stage and the options do not fit together.
        DataError: The pool has no well-formed tree.
        BudgetExceededError: The budget of the scope does not afford the release any more.
    """
    if num_samples < 1:
        raise DataError(f"--num-samples is {num_samples}: give at least 1")
    lines = [line for _, line in read_json_lines(pool)]
    kept = [line for line in lines if isinstance(line.get("parse"), str) and is_valid(line["parse"])]
    if not kept:
        raise DataError(f"{pool} has no well-formed tree under 'parse': sample more trees, or under a grammar")
    trees = [line["parse"] for line in kept]
    path = stage_dir / "marginals.json"
    if not path.exists():
        bins = pool_bins(trees)
        released = release(stage_dir, bins, lambda turn: tree_vector(turn.parse, bins), "function types", exact)
        write_json(path, {**released, "bins": bins})
    released = json.loads(path.read_text(encoding="utf-8"))
    sigma, num_units, bins = released["noise_multiplier"], released["num_units"], released["bins"]
    if (sigma is None) != exact:
        raise UserError(
            f"{path} was released with{'' if exact else 'out'} noise: ask for the same; another release "
            "would be spent on top"
        )
    vectors = tree_matrix(trees, bins)
    targets = np.array([released["sums"][name] for name in bins]) / num_units
    # of a target: the noise, and chance: N unit vectors of norm 1 over K bins
    variance = ((sigma or 0.0) ** 2 + num_units / len(bins)) / num_units**2
    weights = projected_weights(vectors, targets, variance)
    drawn = draw(weights, num_samples, seed, order=sorted(range(len(trees)), key=trees.__getitem__))
    told: dict[str, Any] = {
        "num_pool": len(lines),
        "num_invalid": len(lines) - len(kept),
        "num_drawn": len(drawn),
        "num_repeated": len(drawn) - len(set(drawn)),
        "num_bins": len(bins),
        "noise_multiplier": sigma,
        "effective_share_of_pool": 1 / float(weights @ weights) / len(weights),
        "distance_before": float(np.linalg.norm(vectors.mean(axis=0) - targets)),
        "distance_after": float(np.linalg.norm(np.asarray(vectors[drawn].mean(axis=0)).ravel() - targets)),
        "distance_of_noise": float(np.sqrt(variance * len(bins))),
    }
    write_json(f"{out}.calibration.json", told)
    write_json_lines(out, (kept[i] for i in drawn))
    noise = "exact: NOT PRIVATE" if exact else f"noise of standard deviation {sigma:g}"
    print(
        f"{out}: {len(drawn)} of {len(lines)} trees by the shares of {len(bins)} function types ({noise}); distance "
        f"{told['distance_before']:.4f} before, {told['distance_after']:.4f} after, {told['distance_of_noise']:.4f} "
        f"is noise"
    )
