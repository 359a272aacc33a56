"""How a private step scales from 1 to 256 GPUs: measured imbalance of ranks, measured noise, and arithmetic between.

    DOPPEL_DATA=… python -m benchmarks.scaling [--tokens-per-second 60000]

*Measured here*: Poisson samples of real lengths are split over ranks in two ways (each rank draws for itself; all draw
one sample and share it) and cut into micro-batches as in training; a step takes as long as the rank with most padded
tokens (columns "slowest": by an equal part of the tokens that one GPU alone pads). *Measured on a GPU*: the noise of a
coordinate (:data:`NOISE`). It was drawn by tensor operations, all of it on every rank; now each rank draws its shard's
by one kernel. *Arithmetic*: the slowest rank's time at a given speed of one GPU, the sum over ranks, the optimiser.
Give the speed that ``benchmarks.clipping`` measured on one GPU; without it a share of the peak is assumed.
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
from datamodules.batches.cut import cut
from datamodules.batches.encoded import encode_examples
from datamodules.batches.shares import share
from datamodules.reading.examples import read_examples

#: Seconds of the noise of one coordinate: GPT-2 small (124.4 M) took .11 s a step on an H200 by tensor operations, and
#: 134.5 M coordinates took 1.6 ms on an H100 by the kernel (its prototype, of the same work).
NOISE = {"tensor operations": 0.11 / 124.4e6, "kernel": 1.6e-3 / 134.5e6}
COLUMNS = (
    "GPUs",
    "units a GPU",
    "slowest, own draws",
    "slowest, shared",
    "compute ms",
    "sum over ranks ms",
    "optimiser ms",
    "noise, all on each rank, ms",
    "efficiency",
    "noise of a shard, kernel, ms",
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
        node_bandwidth: Bus bandwidth of a sum within a node.
        network_bandwidth: Of all adapters of one node together.
    """

    name: str
    gpus_per_node: int
    peak_flops: float
    memory_bandwidth: float
    node_bandwidth: float
    network_bandwidth: float

    def sum_seconds(self, num_bytes: float, num_gpus: int) -> float:
        """Reduce-scatter and all-gather by a ring within each node, and by one between nodes for what a node summed."""
        inside = min(num_gpus, self.gpus_per_node)
        nodes = num_gpus / inside
        within, between = (inside - 1) / inside / self.node_bandwidth, (nodes - 1) / nodes / self.network_bandwidth
        return 2 * num_bytes * (within + between)


CLUSTERS = {
    "dgx2-v100": Cluster("DGX-2, 16 V100 a node, 8 × 100 Gb/s between nodes", 16, 125e12, 0.9e12, 120e9, 100e9 * 0.8),
    "dgx1-v100": Cluster("DGX-1, 8 V100 a node, 4 × 100 Gb/s between nodes", 8, 125e12, 0.9e12, 60e9, 50e9 * 0.8),
}


def slowest_rank(
    lengths: NDArray[np.int64], num_ranks: int, args: argparse.Namespace, shared: bool
) -> tuple[float, float]:
    """Means over steps of the most padded tokens, and of the most micro-batches, of any rank; cut as in training."""
    generator, examples = np.random.default_rng(0), SimpleNamespace(lengths=lengths)
    tokens, parts = 0.0, 0.0
    for _ in range(args.repeats):
        units = np.flatnonzero(generator.random(len(lengths)) < args.batch_size / len(lengths))
        if shared:
            shares: list[Any] = [share(units.tolist(), lengths, rank, num_ranks) for rank in range(num_ranks)]
        else:
            shares = [units[units % num_ranks == rank] for rank in range(num_ranks)]  # independent coins on each rank
        rows = ([[int(unit)] for unit in mine] for mine in shares)
        cuts = [list(cut(examples, mine, args.max_tokens_per_micro_batch)) for mine in rows]  # type: ignore[arg-type]
        padded = [sum(len(part) * max(lengths[unit[0]] for unit in part) for part in parts_) for parts_ in cuts]
        tokens += max(padded) / args.repeats
        parts += max(map(len, cuts)) / args.repeats
    return tokens, parts


def rows_of(lengths: NDArray[np.int64], speed: float, cluster: Cluster, args: argparse.Namespace) -> list[list[str]]:
    """A row for each number of GPUs, the first of them 1."""
    # Adam reads the gradient, and reads and writes two moments and the weight
    update = 4 * args.parameters * 7 / cluster.memory_bandwidth
    alone, _ = slowest_rank(lengths, 1, args, True)
    rows: list[list[str]] = []
    single: dict[str, float] = {}
    for gpus in args.gpus:
        reduce, imbalance, compute = cluster.sum_seconds(4 * args.parameters, gpus), {}, {}
        for shared in (False, True):
            most, parts = slowest_rank(lengths, gpus, args, shared)
            imbalance[shared] = most * gpus / alone
            compute[shared] = most / speed + parts * args.ms_per_micro_batch / 1e3
        noise = {way: each * args.parameters / (gpus if way == "kernel" else 1) for way, each in NOISE.items()}
        step = {way: compute[True] + reduce + update + noise[way] for way in NOISE}
        single = single or {way: step[way] * gpus for way in NOISE}
        own_draws = step["kernel"] - compute[True] + compute[False]
        before, now = (1e3 * noise[way] for way in NOISE)
        rows.append([f"{gpus}", f"{args.batch_size / gpus:.0f}", *(f"{imbalance[way]:.2f}" for way in (False, True))])
        rows[-1] += [f"{1e3 * seconds:.1f}" for seconds in (compute[True], reduce, update)]
        rows[-1] += [f"{before:.0f}", f"{single['tensor operations'] / gpus / step['tensor operations']:.0%}"]
        rows[-1] += [f"{now:.2f}", f"{1e3 * step['kernel']:.1f}", f"{args.batch_size / step['kernel']:.0f}"]
        rows[-1] += [f"{single['kernel'] / gpus / seconds:.0%}" for seconds in (step["kernel"], own_draws)]
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", choices=CLUSTERS, default="dgx2-v100")
    parser.add_argument("--parameters", type=float, default=124.4e6, help="trained parameters (gpt2: 124.4e6)")
    parser.add_argument("--num-units", type=int, default=133_584, help="units of the training set")
    parser.add_argument("--batch-size", type=int, default=2048, help="expected units of a logical batch")
    parser.add_argument("--max-tokens-per-micro-batch", type=int, default=32768)
    parser.add_argument("--tokens-per-second", type=float, help="measured on one GPU; an assumption without it")
    parser.add_argument("--utilisation", type=float, default=0.3, help="assumed share of the peak")
    parser.add_argument("--ms-per-micro-batch", type=float, default=20.0, help="launching its kernels; an assumption")
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 16, 32, 64, 128, 256], help="the first one 1")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["p(x)", "p(x|y)"])
    parser.add_argument("--model", default="models/base", help="base model, whose tokens are counted")
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
        f"{args.ms_per_micro_batch:g} ms a micro-batch (assumed). Noise of a coordinate, measured on an H200 and an "
        f"H100: {', '.join(f'{1e9 * seconds:.2g} ns ({way})' for way, seconds in NOISE.items())}.\n"
    )
    (label, path), *_ = training_sets(os.environ.get("DOPPEL_DATA")).items()
    turns = read_examples(path, "utterance")
    for name in args.models:
        usable = [turn for turn in turns if name == "p(x)" or turn.parse is not None]
        lengths = encode_examples(usable, MODELS[name](base_model=args.model).text_format).lengths
        lengths = np.random.default_rng(1).choice(lengths, args.num_units)  # as many units as the full set
        rows = rows_of(lengths.astype(np.int64), speed, cluster, args)
        report.add(f"{label}, {name}, {lengths.mean():.0f} tokens a unit:\n\n{table(COLUMNS, rows)}")


if __name__ == "__main__":
    main()
