"""Files of utterances with programs as a pool to choose from."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from datamodules.columns import USUAL
from datamodules.records import read_records
from doppel.errors import DataError
from doppel.selection import Pool, ProgramError, abstract_query, template, tree

_PROGRAM = (*USUAL["parse"], "program")
_SHOWN = 20  # bad rows that are named


class Row(NamedTuple):
    """A row of a file, good or bad.

    Attributes:
        number: From 0, bad rows counted.
        program: Its program; empty if the row is bad.
        record: All its columns; none if they cannot be told apart.
        problem: Its place, such as ``pool.tsv:7``, and what is wrong with it; the place alone if nothing is.
    """

    number: int
    program: str
    record: dict[str, Any]
    problem: str

    @property
    def name(self) -> str:
        """Its id, or the number of the row from 1."""
        identity = self.record.get("id")
        return str(self.number + 1 if identity is None else identity)


def read_rows(path: str) -> Iterator[Row]:
    """Read a file row by row.

    Args:
        path: Any form that :func:`datamodules.records.read_records` knows, with columns ``utterance`` (or ``text``) and
            ``parse`` (or ``program``), and maybe ``id``.

    Raises:
        DataError: The file cannot be read, or breaks its form (such as broken JSON); the message names the line.
    """
    bad: list[str] = []
    number = 0
    for where, record in read_records(path, bad.append):
        while bad:
            yield Row(number, "", {}, bad.pop(0))
            number += 1
        problem = where
        for what, names in (("utterance", USUAL["text"]), ("program", _PROGRAM)):
            text = next((record[name] for name in names if record.get(name)), "")
            if not (isinstance(text, str) and text.strip()):
                problem, text = f"{where}: no {what}", ""
                break
        yield Row(number, text, record, problem)
        number += 1
    yield from (Row(last, "", {}, problem) for last, problem in enumerate(bad, number))


def good_rows(path: str, skip_bad_rows: bool, with_trees: bool) -> Iterator[tuple[Row, str]]:
    """The rows of a file with their programs without entities.

    Args:
        path: See :func:`read_rows`.
        skip_bad_rows: Whether rows that are broken are passed over; the first twenty are named on the error stream.
        with_trees: Whether a program must have a tree; else it must only be whole.

    Raises:
        DataError: The file cannot be read, or a row of it is broken and rows are not skipped, or none is left.
    """
    faults: dict[str, str] = {}
    good = bad = 0
    for row in read_rows(path):
        problem = row.problem
        if row.program:
            try:
                query = abstract_query(row.program)
                if with_trees and query not in faults:
                    faults[query] = _fault(query)
                fault = faults.get(query, "")
            except ProgramError as error:
                fault = str(error)
            if not fault:
                good += 1
                yield row, query
                continue
            problem += f": a broken program ({fault})"
        if not skip_bad_rows:
            raise DataError(f"{problem}; or pass over such rows with --skip-bad-rows")
        bad += 1
        if bad <= _SHOWN:
            sys.stderr.write(f"skipped {problem}\n")
    if bad:
        sys.stderr.write(f"skipped {bad} of {good + bad} rows of {path}\n")
    if not good:
        raise DataError(f"{path} holds no row with an utterance and a program: give a file with at least one")


def read_pool(path: str, skip_bad_rows: bool, held_out: Collection[str] = ()) -> tuple[Pool, NDArray[np.int64]]:
    """The pool of a file, see :func:`good_rows`, and the number of each of its rows in the file.

    The text of the rows is not kept: a million of them take 400 MiB.

    Rows whose abstract template is one of ``held_out`` are not part of it.

    Raises:
        DataError: See :func:`good_rows`.
    """
    numbers = array("q")
    kept: dict[str, bool] = {}

    def queries() -> Iterator[str]:
        rows = good_rows(path, skip_bad_rows, with_trees=True)
        for row, query in tqdm(rows, desc="rows", unit="row", unit_scale=True, disable=None):
            if query not in kept:
                kept[query] = not held_out or template(query) not in held_out
            if kept[query]:
                numbers.append(row.number)
                yield query

    return Pool.of(queries()), np.frombuffer(numbers, np.int64)


def _fault(query: str) -> str:
    """Why a program has no tree; empty if it has one."""
    try:
        tree(query)
    except ProgramError as error:
        return str(error)
    return ""
