"""Samples drawn from an over-sample, so that function types occur in them as often as in the private turns."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from commands.privacy.histogram import release
from datamodules.readers import content_digest
from datamodules.turn import Turn
from doppel.calibration import draw, pool_bins, projected_weights, tree_matrix, tree_vector
from doppel.errors import DataError, UserError
from doppel.files import read_json_lines, write_json, write_json_lines
from doppel.lispress import is_valid


def calibrate(
    stage_dir: Path,
    *,
    pool: Path,
    out: Path,
    num_samples: int,
    parser: Path | None = None,
    seed: int | None = None,
    exact: bool = False,
) -> None:
    """Samples drawn from an over-sample, so that function types occur in them as often as in the private turns.

    The shares of the function types are released once, with the noise that the trained stage announced
    (histogram_noise_multiplier), as one mechanism in the ledger. They lie in STAGE_DIR/marginals.json and are read
    there by whoever samples from that model again. Which types are counted comes from the pool, which the private model
    wrote. The weights of the samples are as near to uniform as the shares allow, up to their noise; those without a
    well-formed tree are left out. What was done stands in OUT.calibration.json.

    Without --parser the pool holds trees, and the private trees are counted. With it the pool holds utterances: the
    tree of each, private ones too, is what this parser reads. It must not have learnt from the private turns. It reads
    each private utterance by itself, so that no rounding in a batch lets one unit change what is read of another.

    Args:
        stage_dir: Folder of the trained model, RUN/parse_tree; of utterances RUN/one_stage or RUN/parse2utterance.
        pool: JSON lines that the model wrote; twenty times as many as are drawn is a good number.
        out: JSON lines of what is drawn to write, in the order of the pool.
        num_samples: Lines to draw.
        parser: Checkpoint of a public parser: draw utterances by what it reads.
        seed: Seed of the draw, never of the noise.
        exact: No noise: NOT PRIVATE, which the ledger and the report then say.

    Raises:
        UserError: The stage and the options do not fit together.
        DataError: The pool has no well-formed tree.
        BudgetExceededError: The budget of the scope does not afford the release any more.
    """
    if num_samples < 1:
        raise DataError(f"--num-samples is {num_samples}: give at least 1")
    what = "parse" if parser is None else "utterance"
    lines = [line for _, line in read_json_lines(pool)]
    texts = [line[what] if isinstance(line.get(what), str) else "" for line in lines]
    read, digest = _reader(parser)
    found = read(texts, False)
    kept = [(line, tree) for line, tree in zip(lines, found, strict=True) if is_valid(tree)]
    if not kept:
        raise DataError(f"{pool} has no well-formed tree under 'parse': sample more trees, or under a grammar")
    trees = [tree for _, tree in kept]
    path = stage_dir / "marginals.json"
    if not path.exists():
        bins = pool_bins(trees)

        def of_turns(turns: list[Turn]) -> list[dict[str, float]]:
            own = read([turn.parse or "" if parser is None else turn.utterance for turn in turns], True)
            return [tree_vector(tree, bins) for tree in own]

        released = release(stage_dir, bins, of_turns, "function types", exact)
        write_json(path, {**released, "parser_digest": digest, "bins": bins})
    released = json.loads(path.read_text(encoding="utf-8"))
    sigma, num_units, bins = released["noise_multiplier"], released["num_units"], released["bins"]
    if (sigma is None) != exact or released.get("parser_digest") != digest:
        reader = f"by the parser {released['parser_digest']}" if released.get("parser_digest") else "without a parser"
        raise UserError(
            f"{path} was released with{'out' if sigma is None else ''} noise and {reader}: ask for the same; another "
            "release would be spent on top"
        )
    vectors = tree_matrix(trees, bins)
    targets = np.array([released["sums"][name] for name in bins]) / num_units
    # of a target: the noise, and chance: N unit vectors of norm 1 over K bins
    variance = ((sigma or 0.0) ** 2 + num_units / len(bins)) / num_units**2
    weights = projected_weights(vectors, targets, variance)
    drawn = draw(weights, num_samples, seed, order=sorted(range(len(trees)), key=trees.__getitem__))
    told: dict[str, Any] = {
        "of": "trees" if parser is None else "utterances",
        "parser_digest": digest,
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
    write_json_lines(out, (kept[i][0] for i in drawn))
    noise = "exact: NOT PRIVATE" if exact else f"noise of standard deviation {sigma:g}"
    print(
        f"{out}: {len(drawn)} of {len(lines)} {told['of']} by the shares of {len(bins)} function types ({noise}); "
        f"distance {told['distance_before']:.4f} before, {told['distance_after']:.4f} after, "
        f"{told['distance_of_noise']:.4f} is noise"
    )


def _reader(parser: Path | None) -> tuple[Callable[[Sequence[str], bool], list[str]], str | None]:
    """What makes trees of texts, each by itself if that is asked for; the parser's digest."""
    if parser is None:
        return lambda texts, alone: list(texts), None
    from lightning_modules.parsing.annotate import load_parser

    loaded = load_parser(parser)

    def read(texts: Sequence[str], alone: bool) -> list[str]:
        loaded.max_rows = 1 if alone else 256
        distinct = [text for text in dict.fromkeys(texts) if text]
        tree_of = dict(zip(distinct, loaded.annotate(distinct, progress=True), strict=True))
        return [tree_of.get(text, "") for text in texts]

    return read, content_digest(str(parser))
