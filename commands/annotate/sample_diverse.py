"""A small sample of a large pool that shows its structures."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from commands.annotate.pool_file import good_rows, read_pool, read_rows
from doppel.errors import UserError
from doppel.files import write_json_lines


def sample_diverse(
    *,
    pool: Path,
    method: Literal["uat", "cmaxent", "hybrid", "uniform"],
    k: int,
    out: Path,
    seed: int = 1,
    alpha: float = 0.0,
    fixed_weights: bool = False,
    held_out: list[Path] | None = None,
    skip_bad_rows: bool = False,
) -> None:
    """Choose k rows of a synthetic or public pool that differ in structure, to annotate or to train on.

    The methods of Oren et al. (2021). uat: uniform over abstract templates (`templates` shows them), so that rare ones
    are seen. cmaxent: each next row makes the entropy of atoms and of compounds (parts of trees) largest. hybrid: a
    template by chance, then cmaxent inside it. uniform: by chance, to compare with.

    --pool must be public, or synthetic text of a private model: choosing from the latter is post-processing, which
    spends no privacy. Chosen rows of a private file are private text, and nothing here can tell that a file is private:
    never give one.

    Rows come in the order of choice, so the first are worth most; a smaller k with the same seed gives the first of
    these. An interrupted sample of cmaxent or hybrid goes on from OUT.part when the command is given again; the others
    take seconds.

    Args:
        pool: Rows with an utterance and a program: JSON lines such as synthetic.jsonl, a table with named columns, or a
            Schema2QA .tsv.
        method: How to choose.
        k: Rows wanted.
        out: JSON lines: the columns of the pool and the row's template.
        seed: Equal seeds give equal rows.
        alpha: Of uat: 0 is uniform over templates, 1 as frequent as in the pool.
        fixed_weights: Of uat: keep the weights of rows while templates are used up, as the published code; else
            templates are drawn anew among those with rows left, as the paper.
        held_out: Files of rows whose abstract templates no chosen row may have, such as comp_dev.jsonl and
            comp_test.jsonl of `compositional-split`: else a parser that learns from the sample has seen what it is
            tested on.
        skip_bad_rows: Name broken rows and pass over them, instead of stopping at the first.

    Raises:
        DataError: The pool cannot be read, or a row of it is broken.
        UserError: The pool has fewer than k rows, or an option is out of range or does not fit the method.
    """
    import numpy as np

    from doppel.selection import cmaxent, hybrid, template, uat, uniform

    if method != "uat" and (alpha or fixed_weights):
        raise UserError(f"--alpha and --fixed-weights belong to --method uat, not {method}: leave them out")
    kept_away = {template(query) for file in held_out or () for _, query in good_rows(str(file), False, False)}
    found, numbers = read_pool(str(pool), skip_bad_rows, kept_away)
    part = out.with_name(f"{out.name}.part")
    try:
        if method == "uat":
            rows = uat(found, k, seed, alpha, fixed_weights)
        elif method == "uniform":
            rows = uniform(found, k, seed)
        else:
            rows = {"cmaxent": cmaxent, "hybrid": hybrid}[method](found, k, seed, part)
    except ValueError as error:
        raise UserError(f"{pool}: {error}") from None
    templates = [found.templates[number] for number in found.template_of_row[rows]]
    wanted = {int(number): place for place, number in enumerate(numbers[rows])}
    records: list[dict[str, Any]] = [{}] * k
    for row in read_rows(str(pool)):
        if (place := wanted.get(row.number)) is not None:
            records[place] = row.record | {"template": templates[place]}
    write_json_lines(out, records)
    part.unlink(missing_ok=True)
    print(format_table(found, np.bincount(found.query_of_row[rows], minlength=len(found.queries))))
    print(f"{k} rows in {out}, first chosen first")


def format_table(pool: Any, chosen: Any) -> str:
    """How diverse a sample is beside its pool.

    Args:
        pool: The pool, see :class:`doppel.selection.Pool`.
        chosen: Rows of the sample of each query, (queries,).
    """
    import numpy as np

    from commands.quality.table import Table
    from doppel.selection import divergence

    table = Table(["", "rows", "templates", "queries", "H(atoms)", "H(compounds)"])
    for name, counts in (("pool", pool.counts), ("sample", chosen)):
        atoms, compounds = pool.structures.entropies(counts)
        kinds = len(np.unique(pool.template_of_query[counts > 0]))
        table.rows.append([name, counts.sum(), kinds, np.count_nonzero(counts), f"{atoms:.3f}", f"{compounds:.3f}"])
    differ = [
        divergence(matrix.T @ chosen, matrix.T @ pool.counts, alpha)
        for matrix, alpha in ((pool.structures.atoms, 0.5), (pool.structures.compounds, 0.1))
    ]
    told = "entropies in nats; divergence of the sample from the pool (1 - Chernoff coefficient): "
    return f"{table.text('<')}\n{told}atoms {differ[0]:.3f}, compounds {differ[1]:.3f}"
