"""A small sample of a large pool that shows its structures."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from commands.annotate.pool_file import Row, good_rows, read_rows
from datamodules.reading.records import read_records
from doppel.console.table import Table
from doppel.errors import DataError, UserError
from doppel.files import refuse_existing, write_json_lines
from doppel.selection import uat, uniform


class Choice(NamedTuple):
    """How to choose, see :func:`commands.annotate.choose.choose`."""

    num: int
    method: str
    seed: int
    alpha: float = 0.0
    fixed_weights: bool = False


def choose_rows(file: Path, out: Path, how: Choice, held_out: Sequence[Path] = (), skip_bad_rows: bool = False) -> str:
    """Write chosen rows of a pool, the first chosen first, with all their columns and their template.

    The text of the rows is not kept: a million of them take 400 MiB.

    Args:
        file: See :func:`commands.annotate.pool_file.read_rows`.
        out: JSON lines.
        how: How to choose.
        held_out: Files of rows whose templates no chosen row may have.
        skip_bad_rows: Whether broken rows are named and passed over.

    Returns:
        How diverse the sample is beside its pool.

    Raises:
        DataError: A file cannot be read, a row of it is broken, or ``out`` is there and is no earlier sample.
        UserError: The pool has fewer rows, or an option is out of range or does not fit the method.
    """
    if how.method != "uat" and (how.alpha or how.fixed_weights):
        raise UserError(f"--alpha and --fixed-weights belong to --method uat, not {how.method}: leave them out")
    _refuse_other(out)
    kept_away = {template for path in held_out for _, template in good_rows(str(path), False)}
    numbers, of_row, known = array("q"), array("q"), dict[str, int]()
    for row, template in tqdm(good_rows(str(file), skip_bad_rows), "rows", unit="row", unit_scale=True, disable=None):
        if template not in kept_away:
            numbers.append(row.number)
            of_row.append(known.setdefault(template, len(known)))
    template_of_row, templates = np.frombuffer(of_row, np.int64), list(known)
    try:
        if how.method == "uat":
            chosen = uat(template_of_row, how.num, how.seed, how.alpha, how.fixed_weights)
        else:
            chosen = uniform(template_of_row, how.num, how.seed)
    except ValueError as error:
        raise UserError(str(error), about=file) from None
    of_chosen = template_of_row[chosen]
    write_chosen(read_rows(str(file)), out, [numbers[row] for row in chosen], [templates[kind] for kind in of_chosen])
    table = Table(["", "rows", "templates"], [["pool", len(numbers), len(templates)]])
    table.rows.append(["sample", how.num, len(np.unique(of_chosen))])
    return f"{table.text('<')}\n{how.num} rows in {out}, first chosen first"


def _refuse_other(out: Path) -> None:
    """Refuse to write over what is no earlier sample, such as a sheet that people have filled in."""
    try:
        first = next(iter(read_records(str(out))), ("", {}))[1] if out.exists() else {"template": ""}
    except DataError:
        first = {}
    if "template" not in first or "correction" in first:
        refuse_existing(out)


def write_chosen(rows: Iterable[Row], out: Path, numbers: Sequence[int], templates: Sequence[str]) -> None:
    """Write some rows of a file with their templates, in the order of choice.

    Args:
        rows: All rows of the file.
        out: JSON lines.
        numbers: Which rows are written, by their numbers.
        templates: Template of each of these.
    """
    place_of = {number: place for place, number in enumerate(numbers)}
    records: list[dict[str, Any]] = [{}] * len(numbers)
    for row in rows:
        if (place := place_of.get(row.number)) is not None:
            records[place] = row.record | {"template": templates[place]}
    write_json_lines(out, records)
