"""How time and memory of choosing a diverse sample grow with the pool.

    OMP_NUM_THREADS=1 python -m benchmarks.diverse_sampling --out benchmarks/results/diverse-sampling-cpu.md

A pool is a file that is given (`python cli.py schema2qa-pool` writes one), or is made here: ThingTalk programs of six
domains by chance, in which simple shapes and a few properties are frequent and most are rare, and of which a third to a
half differ even without their entities: a hard case. Each is read and chosen from in a process of its own: *read* finds
the programs without entities and checks their trees, *compounds* counts and weighs, *choose* is the sampler: seconds of
one core. The wall clock is that of a machine which may do other work. Memory is the process's peak.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._harness import machine, versions
from commands.annotate.pool_file import read_pool
from commands.quality.table import Table
from doppel.selection import SAMPLERS

DOMAINS = ["Book.Book", "Movie.Movie", "Music.MusicAlbum", "Person.Person", "Restaurant.Restaurant", "Hotel.Hotel"]
RELATIONS = {"String": ["=~", "=="], "Number": [">=", "<=", "=="], "Array(String)": ["contains~", "contains"]}
COLUMNS = ["method", "rows", "queries", "templates", "read", "compounds", "choose", "all", "wall clock", "peak, MiB"]


class Programs:
    """Programs by chance; names of properties and shapes are skewed as 1 / rank.

    Args:
        seed: Of the random choices.
        num_properties: Of each domain.
    """

    def __init__(self, seed: int, num_properties: int = 24) -> None:
        self.rng = np.random.default_rng(seed)
        weights = 1 / np.arange(1, num_properties + 1)
        self.chances = np.cumsum(weights / weights.sum())
        self.types = list(RELATIONS)

    def below(self, num: int) -> int:
        return int(self.rng.integers(num))

    def happens(self, chance: float) -> bool:
        return bool(self.rng.random() < chance)

    def property(self) -> tuple[str, str]:
        rank = int(np.searchsorted(self.chances, self.rng.random()))
        kind = self.types[rank % len(self.types)]
        return f"param:property{'abcdefghijklmnopqrstuvwxyz'[rank]}:{kind}", kind

    def condition(self) -> str:
        name, kind = self.property()
        if kind == "Array(String)" and self.happens(0.2):
            return f"count ( {name} ) >= {self.below(9)}"
        relation = RELATIONS[kind][min(self.below(4), len(RELATIONS[kind]) - 1)]
        value = str(self.below(90)) if kind == "Number" else f'" word {self.below(10**6)} "'
        return f"{'not ' if self.happens(0.05) else ''}{name} {relation} {value}"

    def query(self) -> str:
        table = f"( @org.schema.{DOMAINS[self.below(6)]} )"
        num = min(int(self.rng.geometric(0.6)), 5) - self.happens(0.1)
        word = " or " if self.happens(0.1) else " and "
        found = f"( {table} filter {word.join(self.condition() for _ in range(num))} )" if num else table
        if self.happens(0.1):
            found = f"( compute count ( param:award:Array(String) ) of {found} )"
        if self.happens(0.2):
            order = "asc" if self.happens(0.4) else "desc"
            found = f"( sort {self.property()[0]} {order} of {found} )"
            found = f"( {found} [ 1{f' : {self.below(9)}' if self.happens(0.2) else ''} ] )"
        if self.happens(0.3):
            names = sorted({self.property()[0] for _ in range(min(int(self.rng.geometric(0.8)), 3))})
            return f"[ {' , '.join(names)} ] of {found}"
        return f"aggregate count of {found}" if self.happens(0.05) else found[2:-2]

    def write(self, path: Path, rows: int) -> None:
        with path.open("w", encoding="utf-8") as file:
            for row in range(rows):
                file.write(f"made-{row}\tutterance {row}\tnow => {self.query()} => notify\n")


def measure(path: str, method: str, k: int, seed: int) -> dict[str, Any]:
    """Choose from one pool, and say what it took; called in a process of its own."""
    start, times = time.perf_counter(), [time.process_time()]
    pool, _ = read_pool(path, skip_bad_rows=False)
    times.append(time.process_time())
    if method in ("cmaxent", "hybrid"):
        _ = pool.structures
    times.append(time.process_time())
    rows = SAMPLERS[method](pool, k, seed)
    times.append(time.process_time())
    assert len(set(rows.tolist())) == k
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    spent = [f"{value:.1f}" for value in (*np.diff(times), times[-1] - times[0], time.perf_counter() - start)]
    cells = [method, len(pool.query_of_row), len(pool.queries), len(pool.templates), *spent, round(peak)]
    return dict(zip(COLUMNS, cells, strict=True))


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=[10_000, 100_000, 1_000_000], help="rows of made pools")
    parser.add_argument("--pools", type=Path, nargs="*", default=[], help="files of pools to measure too")
    parser.add_argument("--methods", nargs="+", choices=SAMPLERS, default=["uat", "cmaxent", "hybrid"])
    parser.add_argument("--k", type=int, default=10_000, help="rows chosen, or half of a pool that has less than twice")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write the table to this file")
    args = parser.parse_args(argv)
    table = Table(COLUMNS)
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        for size, given in [*((size, None) for size in args.sizes), *((args.k * 2, path) for path in args.pools)]:
            path = given or Path(folder) / "pool.tsv"
            if given is None:
                Programs(args.seed).write(path, size)
            for method in args.methods:
                with ProcessPoolExecutor(1, context) as worker:
                    cells = worker.submit(measure, str(path), method, min(args.k, size // 2), args.seed).result()
                table.rows.append([cells[name] for name in COLUMNS])
                print(cells, flush=True)
    command = shlex.join(["python", "-m", "benchmarks.diverse_sampling", *(sys.argv[1:] if argv is None else argv)])
    text = (
        f"# Diverse sampling\n\n- command: `{command}`\n- machine: {machine('cpu')}; {versions()}\n"
        f"- chosen: {args.k:,} rows, or half of a pool with less than twice as many\n"
        f"- times in seconds of one core, beside the wall clock\n\n{table.markdown()}\n"
    )
    print(text)
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
