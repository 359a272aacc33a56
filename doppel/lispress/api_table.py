"""Public tables of an API: the names that its functions, arguments and types have."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Sequence
from pathlib import Path

from doppel.errors import DataError, UserError
from doppel.files import read_lines
from doppel.lispress.names import ApiNames

_NAME = r'[^\s()"\\^#:,\[\]][^\s()"\\,\[\]]*'
_IS_NAME = re.compile(_NAME).fullmatch
_GENERIC = re.compile(rf"({_NAME})\s*\[\s*({_NAME}(?:\s*,\s*{_NAME})*)\s*\](?=\s*(?:[,\]]|$))")


def read_api_names(paths: Sequence[str | Path]) -> ApiNames:
    """Read the names of a public API from CSV files without a header.

    A line is an overload of a function: its name, its return type, then ``argument: type`` for each argument. Types are
    written ``Constraint[Event]``; blank fields at the end are left out. A table must come from a public source, never
    from the private data: what a constrained sample is made of is then public, whatever the model.

    Args:
        paths: The files, in which ``~`` and variables such as ``${DOPPEL_DATA}`` are expanded; their names add up.

    Raises:
        UserError: A file is missing, holds no function, or a line is no overload.
    """
    functions: list[tuple[str, tuple[str, ...]]] = []
    types: dict[str, int] = {}
    for path in paths:
        try:
            file = os.path.expanduser(os.path.expandvars(path))
            rows = list(csv.reader(line for _, line in read_lines(file, ".csv")))
        except DataError as error:
            raise UserError(
                f"cannot read the API table, {error}; name a CSV file of functions, such as smcalflow/api_types.csv"
            ) from None
        before = len(functions)
        for number, row in enumerate(rows, start=1):
            fields = [field.strip() for field in row]
            while fields and not fields[-1]:
                fields.pop()
            if fields:
                functions.append(_overload(fields, types, f"{path}, line {number}"))
        if len(functions) == before:
            raise UserError(f"the API table {str(path)!r} names no function: give a line 'name,type,argument: type'")
    return ApiNames(functions, types.items())


def _overload(fields: list[str], types: dict[str, int], where: str) -> tuple[str, tuple[str, ...]]:
    name, *rest = fields
    if len(fields) < 2 or not _IS_NAME(name):
        raise UserError(f"{where}: expected 'name,return type,argument: type,…' with a name that Lispress can write")
    arguments = [field.partition(":") for field in rest[1:]]
    _add_types(rest[0], types, where)
    for argument, _, of_type in arguments:
        if not _IS_NAME(argument) or not of_type:
            raise UserError(f"{where}: expected 'argument: type', got {argument!r} without a name or a type")
        _add_types(of_type, types, where)
    return name, tuple(argument for argument, _, _ in arguments)


def _add_types(text: str, types: dict[str, int], where: str) -> None:
    """Add the type and its parts with their numbers of arguments."""

    def add(generic: re.Match[str]) -> str:
        arguments = generic[2].split(",")
        types.update({argument.strip(): 0 for argument in arguments if argument.strip() not in types})
        types[generic[1]] = len(arguments)
        return generic[1]

    rest, num_found = text.strip(), 1
    while num_found:  # the innermost first
        rest, num_found = _GENERIC.subn(add, rest)
    if not _IS_NAME(rest):
        raise UserError(f"{where}: {text.strip()!r} is no type such as Constraint[Event]")
    types.setdefault(rest, 0)
