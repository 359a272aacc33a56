"""Best beside best: samples of a GPU, resampled to DP shares of their kinds, at one number of texts a system.

    python -m benchmarks.best RESULTS TRAIN VALID_A VALID_B DRAWS CSV --runs one-59 two-59 … --shares none votes trees

RESULTS holds folders of runs, as ``benchmarks/gpu`` brings them back, TRAIN the requests that they were trained on. Of
each pool a third is drawn: evenly (``none``), by the noised share of private requests that vote for each of a hundred
clusters of the pool (``votes``; the encoder is no judge of MAUVE), or by the noised shares of function types in the
private trees (``trees``; pairs of tree and text are drawn, so a text is one for a drawn tree). Shares are released as
in a run, one Gaussian mechanism a pool, but in no ledger: TRAIN is published. Draws are compared with each half of
``valid``, and the first half with the second; MAUVE is the mean of five seeds of its k-means, beside their standard
deviation. With ``--parser`` a parser reads the texts, for functions and the share that follows its tree. What is drawn
stands in DRAWS and is not drawn again; lines are added to CSV.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._harness import command, machine
from commands.privacy.feature_extractors import embed
from commands.quality.evaluate import read_synthetic
from commands.quality.judges import judges_of
from commands.run.execution.code_copy import version
from commands.run_folder.systems import BASE_MODEL
from datamodules.reading.example import Example
from datamodules.reading.examples import read_examples
from doppel.files import write_json_lines
from doppel.metrics import Corpus, compare, compared_sides
from doppel.metrics.judged import Nats
from doppel.metrics.mauve import mauve
from doppel.privacy.histogram import NoisyHistogram
from doppel.resampling import Floats, draw, matrix, pool_bins, share_weights, tree_vector
from doppel.topics import make_clusters
from lightning_modules.semantic_parser import load_parser

#: Noise multiplier of shares and clusters of votes, as a run has them by default; of a pool a third is drawn.
SIGMA, CLUSTERS, OVERSAMPLE, SEEDS = 10.0, 100, 3, range(5)
COLUMNS = ("run", "reference", "metric", "value", "samples_of", "machine", "commit", "command")
SAMPLES_OF = "NVIDIA H100 80GB HBM3"
#: What is kept of ``compare``.
METRICS = ("word_overlap", "distinct", "mean_words", "chi_square", "function_overlap", "fluency", "fluency_outliers")
METRICS += ("parsed_chi_square", "parsed_function_overlap", "parsed_own_tree_match")
Read = Callable[[Sequence[str]], list[str]]
"""A parser's trees of texts."""


def weights(
    shares: str, pool: Sequence[Example], private: Sequence[Example], embeddings: Callable[[], np.ndarray]
) -> Floats:
    """Weights of a pool by shares that are released of private requests.

    Args:
        shares: ``none``, ``votes`` or ``trees``.
        pool: Samples of a private model.
        private: What it was trained on.
        embeddings: Their sentence vectors, each read by itself, for votes.
    """
    if shares == "none":
        return np.full(len(pool), 1 / len(pool))
    if shares == "trees":
        bins = pool_bins([str(example.parse) for example in pool])
        found, told = ([tree_vector(example.parse, bins) for example in side] for side in (pool, private))
    else:
        texts = [example.utterance for example in pool]
        vectors = embed(texts, BASE_MODEL)
        book = make_clusters(texts, vectors, CLUSTERS, BASE_MODEL)
        found, told = ([{name: 1.0} for name in book.nearest(side)] for side in (vectors, embeddings()))
        bins = dict.fromkeys(book.names, 1.0)
    sums = NoisyHistogram(SIGMA).release(((str(unit), vector) for unit, vector in enumerate(told)), bins)
    return share_weights(matrix(found, bins), list(sums.values()), len(private), SIGMA)[0]


def corpus(examples: Sequence[Example]) -> Corpus:
    """Texts with their trees."""
    return Corpus(tuple(example.utterance for example in examples), tuple(example.parse for example in examples))


def measured(
    drawn: Corpus, reference: Corpus, judges: dict[str, Any], nats: Nats | None, read: Read | None
) -> dict[str, float]:
    """The metrics of one draw, of equally many texts of both sides."""
    size = len(drawn.utterances)
    texts, humans = (side.utterances for side in compared_sides(drawn, reference, size, seed=1))
    parsed = None if read is None else read(texts)
    values = compare(drawn, reference, nats=nats, parsed=parsed, num_samples=size, seed=1)
    found: dict[str, float] = {"n": size}
    found |= {name: value for name, value in values.items() if name in METRICS and isinstance(value, float)}
    for name, judge in judges.items():
        several = [mauve(texts, humans, judge, seed=25 + seed) for seed in SEEDS]
        found |= {f"mauve_{name}": statistics.mean(several), f"mauve_{name}_kmeans_std": statistics.stdev(several)}
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Draw, compare and add lines."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.best", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    for name in ("results", "train", "valid_a", "valid_b", "draws", "csv"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--runs", nargs="+", required=True)
    parser.add_argument("--shares", nargs="+", default=["none", "votes", "trees"])
    parser.add_argument("--judges", nargs="*", default=["minilm", "smollm2_135m"])
    parser.add_argument("--parser", type=Path, help="checkpoint of a parser, which reads the texts")
    given = parser.parse_args(argv)
    private, first, second = (
        read_examples(str(path), "utterance") for path in (given.train, given.valid_a, given.valid_b)
    )
    halves = {"first": first, "second": second}
    at_hand = judges_of(given.results, base_model=BASE_MODEL)
    judges = {name: judge for name, judge in at_hand.featurizers.items() if name in given.judges}
    nats = at_hand.nats if "smollm2_135m" in judges else None
    semantic_parser = None if given.parser is None else load_parser(given.parser)
    read = None if semantic_parser is None else lambda texts: semantic_parser.annotate(texts, progress=True)

    @cache
    def embeddings() -> np.ndarray:
        return embed([example.utterance for example in private], BASE_MODEL, independent=True)

    for run in given.runs:
        (file,) = (given.results / run).glob("synthetic*.jsonl")
        pool = read_synthetic(file)
        for shares in given.shares:
            chosen = given.draws / f"{run}+{shares}.jsonl"
            if shares == "trees" and pool[0].parse is None:
                continue
            if not chosen.exists():  # released once
                places = draw(weights(shares, pool, private, embeddings), len(pool) // OVERSAMPLE, seed=1)
                told = [{"utterance": pool[place].utterance, "parse": pool[place].parse} for place in places]
                write_json_lines(chosen, told)
            for half, reference in halves.items():
                found = measured(corpus(read_synthetic(chosen)), corpus(reference), judges, nats, read)
                write(given.csv, {"run": f"{run}+{shares}", "reference": f"{half} half of valid"}, found)
    size = len(read_synthetic(chosen))
    found = measured(corpus(first).sample(size, 1), corpus(second), judges, nats, read)
    write(given.csv, {"run": "human", "reference": "second half of valid"}, found)


def write(path: Path, common: dict[str, str], found: dict[str, float]) -> None:
    """Add a line a metric."""
    common |= {"samples_of": SAMPLES_OF, "machine": machine("cpu"), "commit": version(), "command": command()}
    is_new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        if is_new:
            writer.writeheader()
        writer.writerows({**common, "metric": name, "value": round(value, 5)} for name, value in found.items())


if __name__ == "__main__":
    main()
