"""Rows of files that a study reads: whatever the product reads, and Schema2QA's, with programs of either language."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from functools import cache

from commands.annotate.pool_file import Row, good_rows
from datamodules.reading.files import open_files
from datamodules.reading.records import Record, read_records
from doppel.compressed import ending
from doppel.errors import DataError
from doppel.files import read_lines
from studies.structural_sampling.programs import abstract_query, tree
from studies.structural_sampling.thingtalk import is_program

#: Columns of the published files of Schema2QA, which do not name them.
_COLUMNS = ("id", "utterance", "parse", "label", "typed_template", "template")


def records(path: str, on_bad_row: Callable[[str], None] | None = None) -> Iterator[Record]:
    """Read a file row by row, in order.

    Args:
        path: As :func:`datamodules.reading.records.read_records` reads it, or a .tsv of Schema2QA, whose third cell is
            a program from the first line on.
        on_bad_row: As of that function.

    Raises:
        DataError: The file, or a row of it, cannot be read; the message names the line.
    """
    if ending(path) != ".tsv":
        yield from read_records(path, on_bad_row)
        return
    for name, content in open_files(path).contents:
        first = next((line for _, line in read_lines(name, ".tsv", content)), "").split("\t")
        if not (3 <= len(first) <= len(_COLUMNS) and is_program(first[2].strip('"'))):
            yield from read_records(path, on_bad_row)
            return
        reader = csv.reader((line for _, line in read_lines(name, ".tsv", content)), delimiter="\t", strict=True)
        while True:
            where, problem = f"{name}:{reader.line_num + 1}", ""
            try:
                row = next(reader, None)
                if row is None:
                    return
                if row and len(row) != len(first):
                    problem = f"{where}: {len(row)} cells in this row, {len(first)} in the first"
            except csv.Error as error:  # its text never quotes a cell
                problem = f"{where}: the row that begins here is broken ({error})"
            if problem and on_bad_row is None:
                raise DataError(problem)
            if problem and on_bad_row is not None:
                on_bad_row(problem)
            elif row and any(row):
                yield where, {name: cell or None for name, cell in zip(_COLUMNS, row, strict=False)}


def queries(path: str, skip_bad_rows: bool, with_trees: bool = False) -> Iterator[tuple[Row, str]]:
    """The rows of a file with their programs without entities; as :func:`commands.annotate.pool_file.good_rows`.

    Args:
        path: As of :func:`records`.
        skip_bad_rows: Whether rows that are broken are passed over.
        with_trees: Whether a program must have a tree; else it must only be whole.
    """

    @cache
    def check(query: str) -> None:
        tree(query)

    def abstract(program: str) -> str:
        query = abstract_query(program)
        if with_trees:
            check(query)
        return query

    return good_rows(path, skip_bad_rows, abstract, records)
