"""Files of utterances with programs as a pool to choose from."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from datamodules.reading.columns import USUAL, Columns, listed
from datamodules.reading.records import Record, read_records
from doppel.errors import DataError
from doppel.selection import ProgramError, template

_PROGRAM = (*USUAL["parse"], "program")
_SHOWN = 20  # bad rows that are named

#: Reads a file row by row, and tells of rows that cannot be read, as :func:`datamodules.reading.records.read_records`
#: does.
Reader = Callable[[str, Callable[[str], None]], Iterator[Record]]


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


def read_rows(path: str, read: Reader = read_records) -> Iterator[Row]:
    """Read a file row by row.

    Args:
        path: Any form that ``read`` knows, with columns ``utterance`` (or ``text``) and ``parse`` (or ``program``), and
            maybe ``id``.
        read: Reads the file.

    Raises:
        DataError: The file cannot be read, or breaks its form (such as broken JSON); the message names the line.
    """
    bad: list[str] = []
    number = 0
    for where, record in read(path, bad.append):
        while bad:
            yield Row(number, "", {}, bad.pop(0))
            number += 1
        problem = where
        for what, names in (("utterance", USUAL["text"]), ("program", _PROGRAM)):
            text = next((record[name] for name in names if record.get(name)), "")
            if not (isinstance(text, str) and text.strip()):
                problem, text = f"{where}: no {what}", ""
                if not any(name in record for name in names):
                    told = " or ".join(f"`{name}`" for name in names)
                    problem += f", for there is no column {told}, but {listed(record, Columns())}: rename one"
                break
        yield Row(number, text, record, problem)
        number += 1
    yield from (Row(last, "", {}, problem) for last, problem in enumerate(bad, number))


def good_rows(
    path: str, skip_bad_rows: bool, abstract: Callable[[str], str] = template, read: Reader = read_records
) -> Iterator[tuple[Row, str]]:
    """Yield the rows of a file with their programs without entities.

    Args:
        path: See :func:`read_rows`.
        skip_bad_rows: Whether rows that are broken are passed over; the first twenty are named on the error stream.
        abstract: Takes the entities of a program out, or raises a ``ProgramError``.
        read: See :func:`read_rows`.

    Raises:
        DataError: The file cannot be read, or a row of it is broken and rows are not skipped, or none is left.
    """
    good = bad = 0
    for row in read_rows(path, read):
        problem = row.problem
        if row.program:
            try:
                found = abstract(row.program)
                good += 1
                yield row, found
                continue
            except ProgramError as error:
                problem += f": a broken program ({error})"
        if not skip_bad_rows:
            raise DataError(f"{problem}; or pass over such rows with --skip-bad-rows")
        bad += 1
        if bad <= _SHOWN:
            sys.stderr.write(f"skipped {problem}\n")
    if bad:
        sys.stderr.write(f"skipped {bad} of {good + bad} rows of {path}\n")
    if not good:
        raise DataError(f"{path} holds no row with an utterance and a program: give a file with at least one")
