"""Files for training and evaluation whose templates differ."""

from __future__ import annotations

from pathlib import Path

from doppel.console.table import Table
from doppel.errors import UserError
from doppel.files import write_json_lines
from studies.structural_sampling.programs import names, template
from studies.structural_sampling.rows import queries
from studies.structural_sampling.split import compositional_split


def split(
    file: Path,
    *,
    out: Path,
    seed: int = 1,
    comp_share: float = 0.27,
    iid_share: float = 0.1,
    skip_bad_rows: bool = False,
) -> None:
    """Split annotated rows so that a parser is tested on templates that it never saw in training.

    Write train, iid_dev, iid_test, comp_dev and comp_test (.jsonl) in a folder: templates of the comp_ files occur in
    no other one, the iid_ files are drawn from what train is drawn from (Oren et al., 2021, appendix A). Rows to
    evaluate on that name a property, table, enum or operator which no training row names are dropped.

    The five files are as private as the given one.

    Args:
        file: Rows with an utterance and a program: JSON lines, a table with named columns, or a Schema2QA .tsv.
        out: Folder for the five files.
        seed: Equal seeds split alike.
        comp_share: Share of the templates, but the three most basic ones, in each comp_ file.
        iid_share: Share of the rows left in each iid_ file.
        skip_bad_rows: Name broken rows and pass over them, instead of stopping at the first.

    Raises:
        DataError: The file cannot be read, or a row of it is broken.
        UserError: A share is out of range, or no row is left to train on.
    """
    rows, templates, named = [], [], []
    for row, query in queries(str(file), skip_bad_rows):
        templates.append(template(query))
        rows.append(row.record | {"template": templates[-1]})
        named.append(names(row.program))
    try:
        parts = compositional_split(templates, named, seed, comp_share, iid_share)
    except ValueError as error:
        raise UserError(str(error), about=file) from None
    dropped = parts.pop("dropped")
    seen = {templates[row] for row in parts["train"]}
    table = Table(["", "rows", "templates", "new templates"])
    for name, places in parts.items():
        write_json_lines(out / f"{name}.jsonl", (rows[place] for place in places))
        kinds = {templates[place] for place in places}
        table.rows.append([name, len(places), len(kinds), len(kinds - seen)])
    print(table.text())
    print(f"{len(dropped)} rows to evaluate on name what no training row names, and were dropped; files in {out}")
