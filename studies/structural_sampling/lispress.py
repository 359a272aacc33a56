"""ThingTalk programs as the trees that a parser of the product learns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datamodules.reading.columns import USUAL
from doppel.errors import DataError
from doppel.files import write_json_lines
from studies.structural_sampling.rows import queries
from studies.structural_sampling.thingtalk import ThingTalkError, is_program, to_lispress


def lispress(file: Path, *, out: Path) -> None:
    """Write rows with their programs as Lispress, which `python cli.py fit` and `run` read.

    Args:
        file: Rows with an utterance and a program: JSON lines, a table with named columns, or a Schema2QA .tsv.
        out: JSON lines with utterance, parse and label.

    Raises:
        DataError: The file cannot be read, or a row of it is broken.
    """

    def rows() -> Iterator[dict[str, Any]]:
        for row, _ in queries(str(file), skip_bad_rows=False):
            try:
                tree = to_lispress(row.program) if is_program(row.program) else row.program
            except ThingTalkError as error:
                raise DataError(f"unreadable ThingTalk: {error}: correct the program", about=row.problem) from None
            text = next(row.record[name] for name in USUAL["text"] if row.record.get(name))
            yield {"utterance": text, "parse": tree, "label": row.record.get("label")}

    made = list(rows())
    write_json_lines(out, made)
    print(f"{len(made)} rows in {out}")
