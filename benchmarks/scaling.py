"""How a private step scales from 1 to 256 GPUs: measured imbalance of ranks, and a model on paper for the rest.

    DOPPEL_DATA=… python -m benchmarks.scaling --tokens-per-second 60000

What is measured here: Poisson samples of real lengths are split over ranks in two ways (each rank draws for itself; all
draw one sample and share it) and cut into micro-batches as in training; a step takes as long as the rank with most
padded tokens (columns "slowest": by an equal part of the tokens that one GPU alone pads). What is arithmetic: that
rank's time at a given speed of one GPU, the sum over ranks, noise and optimiser. Give the speed that
``benchmarks.clipping`` or a profiler measured on one GPU; without it a share of the peak is
assumed, and the table says so. Assumptions: docs/performance.md.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks._harness import RESULTS, Report, table
from benchmarks.batching import MODELS, training_sets
from datamodules.balanced_shares import share
from datamodules.encoded_turns import encode_turns
from datamodules.logical_batches import cut
from datamodules.tables import read_turns

COLUMNS = (
    "GPUs",
    "units a GPU",
    "slowest, own draws",
    "slowest, shared",
    "compute ms",
    "sum over ranks ms",
    "noise, optimiser ms",
    "step ms",
    "examples/s",
    "efficiency",
    "with own draws",
)


@dataclass(frozen=True)
class Cluster:
    """GPUs and what joins them; bandwidths in bytes a second, of one direction.

    Attributes:
        name: What it is called.
        gpus_per_node: GPUs that share the fast links.
        peak_flops: Half-precision peak of one GPU.
        memory_bandwidth: Of one GPU's memory.
        node_bandwidth: Bus bandwidth of an all-reduce within a node.
        network_bandwidth: Of all adapters of one node together.
    """

    name: str
    gpus_per_node: int
    peak_flops: float
    memory_bandwidth: float
    node_bandwidth: float
    network_bandwidth: float


CLUSTERS = {
    "dgx2-v100": Cluster("DGX-2, 16 V100 a node, 8 × 100 Gb/s between nodes", 16, 125e12, 0.9e12, 120e9, 100e9 * 0.8),
    "dgx1-v100": Cluster("DGX-1, 8 V100 a node, 4 × 100 Gb/s between nodes", 8, 125e12, 0.9e12, 60e9, 50e9 * 0.8),
}


def all_reduce_seconds(cluster: Cluster, num_bytes: float, num_gpus: int) -> float:
    """A ring within each node, and one between nodes for what a node has summed."""
    inside = min(num_gpus, cluster.gpus_per_node)
    nodes = num_gpus / inside
    return (
        2
        * num_bytes
        * ((inside - 1) / inside / cluster.node_bandwidth + (nodes - 1) / nodes / cluster.network_bandwidth)
    )


def work(lengths: NDArray[np.int64], units: NDArray[np.int64], budget: int) -> tuple[int, int]:
    """Padded tokens of a rank's units and the number of micro-batches, cut as in training."""
    turns: Any = SimpleNamespace(lengths=lengths)
    parts = list(cut(turns, [[int(unit)] for unit in units], budget))
    return sum(len(part) * int(lengths[part[0][0]]) for part in parts), len(parts)


def slowest_rank(
    lengths: NDArray[np.int64], batch_size: int, num_ranks: int, budget: int, repeats: int, shared: bool
) -> tuple[float, float]:
    """Means over steps of the most padded tokens, and of the most micro-batches, of any rank."""
    generator = np.random.default_rng(0)
    tokens, parts = 0.0, 0.0
    for _ in range(repeats):
        units = np.flatnonzero(generator.random(len(lengths)) < batch_size / len(lengths))
        if shared:
            shares = [share(units, lengths, rank, num_ranks) for rank in range(num_ranks)]
        else:
            shares = [units[units % num_ranks == rank] for rank in range(num_ranks)]  # independent coins on each rank
        ranks = [work(lengths, part, budget) for part in shares]
        tokens += max(rank[0] for rank in ranks) / repeats
        parts += max(rank[1] for rank in ranks) / repeats
    return tokens, parts


def main(argv: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", choices=CLUSTERS, default="dgx2-v100")
    parser.add_argument("--parameters", type=float, default=124e6, help="trained parameters (gpt2: 124e6)")
    parser.add_argument("--num-units", type=int, default=133_584, help="units of the training set")
    parser.add_argument("--batch-size", type=int, default=2048, help="expected units of a logical batch")
    parser.add_argument("--max-tokens-per-micro-batch", type=int, default=32768)
    parser.add_argument("--tokens-per-second", type=float, help="measured on one GPU; an assumption without it")
    parser.add_argument("--utilisation", type=float, default=0.3, help="assumed share of the peak")
    parser.add_argument("--ms-per-micro-batch", type=float, default=20.0, help="launching its kernels; an assumption")
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 16, 32, 64, 128, 256])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["p(x)", "p(x|y)"])
    parser.add_argument("--repeats", type=int, default=20, help="sampled steps")
    parser.add_argument("--out", type=Path, default=RESULTS / "scaling.md")
    args = parser.parse_args(argv)
    cluster = CLUSTERS[args.cluster]
    speed = args.tokens_per_second or args.utilisation * cluster.peak_flops / (6 * args.parameters)
    source = (
        "measured" if args.tokens_per_second else f"ASSUMED: {args.utilisation:.0%} of the peak, 6 FLOPs a parameter"
    )
    report = Report("Scaling of a private step", "cpu", args.out, append=False)
    report.add(
        f"{cluster.name}; {args.parameters / 1e6:.0f} M parameters, {4 * args.parameters / 1e6:.0f} MB summed a step; "
        f"B = {args.batch_size} of N = {args.num_units}; one GPU: {speed:.0f} tokens/s ({source}), "
        f"{args.ms_per_micro_batch:g} ms a micro-batch (assumed).\n"
    )
    # Adam reads and writes two moments and the weight and reads the gradient; noise reads and writes the gradient.
    update = 4 * args.parameters * (7 + 2) / cluster.memory_bandwidth
    (label, path), *_ = training_sets(os.environ.get("DOPPEL_DATA")).items()
    turns = list(read_turns(path, "utterance"))
    for name in args.models:
        lengths = encode_turns(turns, MODELS[name]().codec).lengths
        lengths = np.random.default_rng(1).choice(lengths, args.num_units)  # as many units as the full set
        rows, single = [], None
        alone, _ = slowest_rank(lengths, args.batch_size, 1, args.max_tokens_per_micro_batch, args.repeats, True)
        for gpus in args.gpus:
            seconds = {}
            imbalance = {}
            for shared in (False, True):
                most, parts = slowest_rank(
                    lengths, args.batch_size, gpus, args.max_tokens_per_micro_batch, args.repeats, shared
                )
                imbalance[shared] = most * gpus / alone
                compute = most / speed + parts * args.ms_per_micro_batch / 1e3
                reduce = all_reduce_seconds(cluster, 4 * args.parameters, gpus)
                seconds[shared] = compute + reduce + update
            single = single or seconds[True] * gpus
            cells = [f"{gpus}", f"{args.batch_size / gpus:.0f}", f"{imbalance[False]:.2f}", f"{imbalance[True]:.2f}"]
            cells += [f"{1e3 * x:.1f}" for x in (compute, reduce, update, seconds[True])]
            cells += [f"{args.batch_size / seconds[True]:.0f}"]
            cells += [f"{single / gpus / seconds[shared]:.0%}" for shared in (True, False)]
            rows.append(cells)
        report.add(f"{label}, {name}, {lengths.mean():.0f} tokens a unit:\n\n{table(COLUMNS, rows)}")


if __name__ == "__main__":
    main()
