"""Files of utterances with programs as a pool to choose from."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from datamodules.columns import USUAL
from datamodules.records import kind, read_records
from doppel.errors import DataError
from doppel.files import as_text, read_lines
from doppel.selection import Pool, ProgramError, abstract_query, tree

#: Names of the columns of a Schema2QA file, which has no line with them.
_SCHEMA2QA = ("id", "utterance", "parse", "domain", "typed_template", "template")
_PROGRAM = (*USUAL["parse"], "program")
_SHOWN = 20  # bad rows that are named


class Row(NamedTuple):
    """A row of a file, good or bad.

    Attributes:
        where: Its place, such as ``pool.tsv:7``.
        name: Its id, or the number of the row from 1.
        program: Its program; empty if it has none.
        record: All its columns.
        problem: What is wrong with it; empty if nothing is.
    """

    where: str
    name: str
    program: str
    record: dict[str, Any]
    problem: str


def read_rows(path: str) -> Iterator[Row]:
    """Read a file row by row.

    Either any form that :func:`datamodules.records.read_records` knows, with columns ``utterance`` (or ``text``) and
    ``parse`` (or ``program``), and maybe ``id``; or a ``.tsv`` as Schema2QA has it: no line of names, and in each line
    id, utterance, program and up to three more.

    Raises:
        DataError: The file cannot be read, or breaks its form (such as broken JSON); the message names the line.
    """
    with_names = kind(path) != ".tsv" or _has_names(path)
    for number, (where, record, problem) in enumerate(_named(path) if with_names else _schema2qa(path), 1):
        utterance = next((record[name] for name in USUAL["text"] if record.get(name)), "")
        program = next((record[name] for name in _PROGRAM if record.get(name)), "")
        if not problem and not (isinstance(utterance, str) and utterance.strip()):
            problem = "no utterance"
        if not problem and not (isinstance(program, str) and program.strip()):
            problem = "no program"
        name = record.get("id")
        yield Row(where, str(number if name is None else name), program if not problem else "", record, problem)


def good_rows(path: str, skip_bad_rows: bool, with_trees: bool) -> Iterator[tuple[Row, str]]:
    """The rows of a file with their programs without entities.

    Args:
        path: See :func:`read_rows`.
        skip_bad_rows: Whether rows that are broken are passed over; the first twenty are named on the error stream.
        with_trees: Whether a program must have a tree; else it must only be whole.

    Raises:
        DataError: The file cannot be read, or a row of it is broken and rows are not skipped, or none is left.
    """
    checked: dict[str, str] = {}
    good = bad = 0
    for row in read_rows(path):
        problem, query = row.problem, ""
        if not problem:
            try:
                query = abstract_query(row.program)
                if with_trees and query not in checked:
                    checked[query] = ""
                    tree(query)
            except ProgramError as error:
                problem = f"a broken program ({error})"
                checked[query] = problem
            problem = problem or checked.get(query, "")
        if not problem:
            good += 1
            yield row, query
            continue
        if not skip_bad_rows:
            raise DataError(f"{row.where}: {problem}: mend the row, or pass over such rows with --skip-bad-rows")
        bad += 1
        if bad <= _SHOWN:
            sys.stderr.write(f"skipped {row.where}: {problem}\n")
    if bad:
        sys.stderr.write(f"skipped {bad} of {good + bad} rows of {path}\n")
    if not good:
        raise DataError(f"{path} holds no row with an utterance and a program: give a file with at least one")


def read_pool(path: str, skip_bad_rows: bool) -> Pool:
    """The pool of a file, see :func:`good_rows`; the text of the rows is not kept."""
    return Pool.of(query for _, query in good_rows(path, skip_bad_rows, with_trees=True))


def _named(path: str) -> Iterator[tuple[str, dict[str, Any], str]]:
    return ((where, record, "") for where, record in read_records(path))


def _has_names(path: str) -> bool:
    for _, line in read_lines(path, ".tsv"):
        names = {name.strip() for name in line.decode("utf-8", "replace").removeprefix("\ufeff").split("\t")}
        return not names.isdisjoint(USUAL["text"]) and not names.isdisjoint(_PROGRAM)
    return False


def _schema2qa(path: str) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Rows without names; one that has more or fewer columns than the first is bad."""
    wanted = 0
    for number, line in read_lines(path, ".tsv"):
        where = f"{path}:{number}"
        try:
            cells = next(csv.reader([as_text(line, where)], delimiter="\t", strict=True), [])
        except csv.Error as error:
            yield where, {}, f"a broken row ({error})"
            continue
        wanted = wanted or len(cells)
        if not 3 <= wanted <= len(_SCHEMA2QA):
            raise DataError(f"{where}: {wanted} columns: give id, utterance, program, or name the columns in line 1")
        problem = "" if len(cells) == wanted else f"{len(cells)} columns, {wanted} in line 1"
        yield where, dict(zip(_SCHEMA2QA, cells, strict=False)), problem
