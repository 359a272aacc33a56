"""Rows for annotators: which ones, their sheet, and what comes back of it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from doppel.console.command import check_options
from doppel.errors import UserError

Method = Literal["uat", "uniform"]

#: What each way of calling the command takes, beside its own option.
_TAKES = {
    "--num": {"file", "out", "method", "seed", "alpha", "fixed_weights", "held_out", "skip_bad_rows"},
    "--to-sheet": {"file", "parser"},
    "--from-sheet": {"out", "skip_bad_rows"},
}


def choose(
    file: Path | None = None,
    *,
    num: int | None = None,
    to_sheet: Path | None = None,
    from_sheet: Path | None = None,
    out: Path | None = None,
    method: Method = "uat",
    seed: int = 1,
    alpha: float = 0.0,
    fixed_weights: bool = False,
    held_out: list[Path] | None = None,
    parser: Path | None = None,
    skip_bad_rows: bool = False,
) -> None:
    """Choose rows to annotate, write them as a sheet, read the sheet back.

    After Oren et al. (2021): `uat` is uniform over abstract templates (trees with VALUE in place of strings, numbers,
    dates and names), so that rare ones are seen. A smaller number with the same seed gives the first of these rows. A
    sheet shows the predicted tree, the parser's confidence (mean probability of an action) and an empty `correction`:
    write `ok`, `drop` or the right tree. Templates take turns, the least sure rows first: annotate from the top. The
    share that was right is no accuracy of the parser. The pool must be public, or samples of a private model
    (post-processing, no additional privacy cost). Nothing here can tell that a file is private, and people read what is
    chosen: never give private text.

    Example:
        python cli.py choose runs/mine/synthetic.jsonl --num 200 --out chosen.jsonl
        python cli.py choose chosen.jsonl --to-sheet sheet.csv
        python cli.py choose --from-sheet sheet.csv --out annotated.jsonl

    Args:
        file: Rows with an utterance and a tree: JSON lines such as synthetic.jsonl, or a table with named columns. A
            sheet needs no tree if --parser predicts it.
        num: Choose so many rows.
        to_sheet: Write the rows of the file as a sheet here: .csv for a spreadsheet, else JSON lines.
        from_sheet: Read this sheet, filled in: .csv, .tsv or JSON lines.
        out: JSON lines to write: chosen rows with all their columns and the template, or utterances with their trees.
        method: How to choose.
        seed: Equal seeds give equal rows.
        alpha: Of uat: 0 is uniform over templates, 1 as frequent as in the pool.
        fixed_weights: Of uat: keep the weights of rows while templates are used up, as the published code; else
            templates are drawn anew among those with rows left, as the paper.
        held_out: Files of rows whose abstract templates no chosen row may have: else a parser that learns from the
            sample has seen what it is tested on.
        parser: Of a sheet: checkpoint of a public parser, which predicts the trees; without it the file's own trees
            (and its column `confidence`, if there is one) are shown.
        skip_bad_rows: Name broken rows and pass over them, instead of stopping at the first.

    Raises:
        DataError: A file cannot be read, or a row of it is broken.
        UserError: Options do not fit together or are out of range, the pool has fewer rows, or the parser cannot be
            loaded.
    """
    values, ways = dict(locals()), {"num": "--num", "to_sheet": "--to-sheet", "from_sheet": "--from-sheet"}
    asked = [name for name in ways if values[name] is not None]
    if len(asked) != 1:
        raise UserError("give one of --num (choose rows), --to-sheet (write a sheet) and --from-sheet (read it back)")
    way = ways[asked[0]]
    check_options(choose, values, way, {*asked, *_TAKES[way]})
    for name, word in (("file", "a file of rows"), ("out", "--out")):
        if name in _TAKES[way] and values[name] is None:
            raise UserError(f"{way} needs {word}")
    if way == "--num":
        from commands.annotate.diverse import Choice, choose_rows

        how = Choice(values["num"], method, seed, alpha, fixed_weights)
        print(choose_rows(values["file"], values["out"], how, held_out or [], skip_bad_rows))
    elif way == "--to-sheet":
        from commands.annotate.sheets import write_sheet

        print(write_sheet(values["file"], values["to_sheet"], parser))
    else:
        from commands.annotate.sheets import read_sheet

        print(read_sheet(values["from_sheet"], values["out"], skip_bad_rows))
