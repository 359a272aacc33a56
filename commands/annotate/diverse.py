"""A small sample of a large pool that shows its structures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from commands.annotate.pool_file import good_rows, read_pool, read_rows
from doppel.errors import UserError
from doppel.files import write_json_lines

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from doppel.selection import Pool


class Choice(NamedTuple):
    """How to choose, see :func:`commands.annotate.choose.choose`."""

    num: int
    method: str
    seed: int
    alpha: float = 0.0
    fixed_weights: bool = False


def choose_rows(file: Path, out: Path, how: Choice, held_out: Sequence[Path] = (), skip_bad_rows: bool = False) -> str:
    """Write chosen rows of a pool, the first chosen first, with all their columns and their template.

    Args:
        file: See :func:`commands.annotate.pool_file.read_rows`.
        out: JSON lines. The choices of an interrupted greedy method are kept beside it, in OUT.part.
        how: How to choose.
        held_out: Files of rows whose templates no chosen row may have.
        skip_bad_rows: Whether broken rows are named and passed over.

    Returns:
        How diverse the sample is beside its pool.

    Raises:
        DataError: A file cannot be read, or a row of it is broken.
        UserError: The pool has fewer rows, or an option is out of range or does not fit the method.
    """
    import numpy as np

    from doppel.selection import cmaxent, hybrid, template, uat, uniform

    if how.method != "uat" and (how.alpha or how.fixed_weights):
        raise UserError(f"--alpha and --fixed-weights belong to --method uat, not {how.method}: leave them out")
    kept_away = {template(query) for file in held_out for _, query in good_rows(str(file), False, False)}
    pool, numbers = read_pool(str(file), skip_bad_rows, kept_away)
    part = out.with_name(f"{out.name}.part")
    try:
        if how.method == "uat":
            rows = uat(pool, how.num, how.seed, how.alpha, how.fixed_weights)
        elif how.method == "uniform":
            rows = uniform(pool, how.num, how.seed)
        else:
            rows = {"cmaxent": cmaxent, "hybrid": hybrid}[how.method](pool, how.num, how.seed, part)
    except ValueError as error:
        raise UserError(str(error), about=file) from None
    templates = [pool.templates[number] for number in pool.template_of_row[rows]]
    wanted = {int(number): place for place, number in enumerate(numbers[rows])}
    records: list[dict[str, Any]] = [{}] * how.num
    for row in read_rows(str(file)):
        if (place := wanted.get(row.number)) is not None:
            records[place] = row.record | {"template": templates[place]}
    write_json_lines(out, records)
    part.unlink(missing_ok=True)
    table = format_table(pool, np.bincount(pool.query_of_row[rows], minlength=len(pool.queries)))
    return f"{table}\n{how.num} rows in {out}, first chosen first"


def format_table(pool: Pool, chosen: NDArray[np.integer]) -> str:
    """How diverse a sample is beside its pool.

    Args:
        pool: The pool.
        chosen: Rows of the sample of each query, (queries,).
    """
    import numpy as np

    from doppel.console.table import Table
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
    note = "entropies in nats; divergence of the sample from the pool (1 - Chernoff coefficient): "
    return f"{table.text('<')}\n{note}atoms {differ[0]:.3f}, compounds {differ[1]:.3f}"
