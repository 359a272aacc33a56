"""What a synthetic pool has of natural programs: templates, atoms, compounds, and how skewed its templates are.

    python cli.py schema2qa-pool --out runs/pool.tsv
    OMP_NUM_THREADS=1 python -m benchmarks.pool_coverage --pool runs/pool.tsv \
        --natural data/schema2qa/{program_train,iid_dev,program_dev}.tsv --out benchmarks/results/pool-coverage-cpu.md

*Skew* is the exponent s of p ∝ 1 / rank^s that makes the counts of templates likeliest. *In the pool* are the shares
of a file's templates, rows, distinct atoms and compounds, and of the weight of its compounds, that the pool has.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from benchmarks._harness import command, machine, versions
from commands.annotate.pool_file import read_pool
from commands.quality.table import Table
from doppel.selection import Pool

COLUMNS = ["file", "rows", "queries", "templates", "skew", "H(atoms)", "H(compounds)"]
SHARES = ["templates", "rows", "atoms", "compounds", "weight of compounds"]


def skew(counts: NDArray[np.integer]) -> float:
    """The exponent s of p ∝ 1 / rank^s under which counts are likeliest; 0 for one thing alone.

    Args:
        counts: How often each thing was seen, (things,), in any order.
    """
    if len(counts) < 2:
        return 0.0
    logs = np.log(np.arange(1, len(counts) + 1))
    mean = float(np.sort(counts)[::-1] @ logs / counts.sum())
    return float(minimize_scalar(lambda s: s * mean + np.log(np.exp(-s * logs).sum()), (0, 1), tol=1e-6).x)


def described(path: str, pool: Pool) -> list[Any]:
    """Sizes, skew and entropies of one file, as :data:`COLUMNS` names them."""
    per_template = np.bincount(pool.template_of_row)
    entropies = pool.structures.entropies(pool.counts)
    sizes = (len(pool.query_of_row), len(pool.queries), len(pool.templates))
    return [Path(path).name, *sizes, skew(per_template), *entropies]


def covered(natural: Pool, pool: Pool) -> list[float]:
    """Which shares of a natural file a pool has, as :data:`SHARES` names them."""
    known = np.isin(natural.templates, pool.templates)
    mine, others = natural.structures, pool.structures
    compounds = np.isin(mine.compound_names, others.compound_names)
    weights = np.asarray(mine.compounds.T @ natural.counts)
    return [
        float(known.mean()),
        float(known[natural.template_of_row].mean()),
        float(np.isin(mine.atom_names, others.atom_names).mean()),
        float(compounds.mean()),
        float(weights[compounds].sum() / weights.sum()),
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and write both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pool", required=True, help="file of the pool")
    parser.add_argument("--natural", nargs="+", required=True, help="files of natural programs")
    parser.add_argument("--out", type=Path, help="write the tables to this file")
    args = parser.parse_args(argv)
    pool, _ = read_pool(args.pool, skip_bad_rows=False)
    files, shares = Table(COLUMNS, [described(args.pool, pool)]), Table(["file", *SHARES])
    for path in args.natural:
        natural, _ = read_pool(path, skip_bad_rows=False)
        files.rows.append(described(path, natural))
        shares.rows.append([Path(path).name, *covered(natural, pool)])
    text = (
        f"# A pool beside natural programs\n\n- command: `{command()}`\n- machine: {machine('cpu')}; {versions()}\n\n"
        f"{files.markdown()}\n\nIn the pool:\n\n{shares.markdown()}\n"
    )
    print(text)
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
