"""A small sample of a large pool, by every sampler of the document."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from commands.annotate.diverse import write_chosen
from commands.annotate.pool_file import read_rows
from doppel.console.table import Table
from doppel.errors import UserError
from doppel.selection import uat, uniform
from studies.structural_sampling.max_entropy import cmaxent
from studies.structural_sampling.pool import Pool
from studies.structural_sampling.programs import template
from studies.structural_sampling.rows import queries, records
from studies.structural_sampling.structures import divergence


def choose(
    file: Path,
    *,
    num: int,
    out: Path,
    method: Literal["cmaxent", "uat", "uniform"] = "cmaxent",
    seed: int = 1,
    held_out: list[Path] | None = None,
    skip_bad_rows: bool = False,
) -> None:
    """Choose rows of a pool, in Lispress or ThingTalk, and say how diverse they are.

    cmaxent: each next row makes the entropy of atoms and of compounds (parts of trees) largest; a sample takes minutes.
    uat and uniform are those of `python cli.py choose`. Chosen rows of a private file are private text.

    Args:
        file: Rows with an utterance and a program: JSON lines, a table with named columns, or a Schema2QA .tsv.
        num: Choose so many rows.
        out: JSON lines to write, the first chosen first, with all columns and the template.
        method: How to choose.
        seed: Equal seeds give equal rows; fewer rows are the first of more.
        held_out: Files of rows whose abstract templates no chosen row may have.
        skip_bad_rows: Name broken rows and pass over them, instead of stopping at the first.

    Raises:
        DataError: A file cannot be read, or a row of it is broken.
        UserError: The pool has fewer rows.
    """
    kept_away = {template(query) for path in held_out or [] for _, query in queries(str(path), False)}
    numbers, found = array("q"), list[str]()
    for row, query in tqdm(queries(str(file), skip_bad_rows, with_trees=True), "rows", unit="row", disable=None):
        if not kept_away or template(query) not in kept_away:
            numbers.append(row.number)
            found.append(query)
    pool = Pool.of(found)
    try:
        if method in ("uat", "uniform"):
            chosen = {"uat": uat, "uniform": uniform}[method](pool.template_of_row, num, seed)
        else:
            chosen = cmaxent(pool, num, seed)
    except ValueError as error:
        raise UserError(str(error), about=file) from None
    templates = [pool.templates[kind] for kind in pool.template_of_row[chosen]]
    write_chosen(read_rows(str(file), records), out, [numbers[row] for row in chosen], templates)
    print(f"{format_table(pool, np.bincount(pool.query_of_row[chosen], minlength=len(pool.queries)))}")
    print(f"{num} rows in {out}, first chosen first")


def format_table(pool: Pool, chosen: NDArray[np.integer]) -> str:
    """How diverse a sample is beside its pool.

    Args:
        pool: The pool.
        chosen: Rows of the sample of each query, (queries,).
    """
    table = Table(["", "rows", "templates", "queries", "H(atoms)", "H(compounds)"])
    for name, counts in (("pool", pool.counts), ("sample", chosen)):
        atoms, compounds = pool.structures.entropies(counts)
        kinds = len(np.unique(pool.template_of_query[counts > 0]))
        table.rows.append([name, counts.sum(), kinds, np.count_nonzero(counts), f"{atoms:.3f}", f"{compounds:.3f}"])
    differ = [
        divergence(matrix.T @ chosen, matrix.T @ pool.counts, alpha)
        for matrix, alpha in ((pool.structures.atoms, 0.5), (pool.structures.compounds, 0.1))
    ]
    note = "entropies in nats; divergence of the sample from the pool (1 - Chernoff coefficient): "
    return f"{table.text('<')}\n{note}atoms {differ[0]:.3f}, compounds {differ[1]:.3f}"
