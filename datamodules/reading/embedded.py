"""The embedded grammar as a file of rows, which is read by the name of a path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from datamodules.reading.example import Unit
from doppel.errors import DataError
from doppel.grammar import GeneratedTurn, generate

#: Arguments of a path, with their types.
_ARGUMENTS = {"num": int, "seed": int, "skew": float}


def is_embedded(path: str) -> bool:
    """Return whether a path names the embedded grammar rather than a file."""
    return path.startswith("embedded:")


def embedded_turns(path: str) -> Iterator[GeneratedTurn]:
    """Return the turns of the grammar for a path such as ``embedded:train?num=4000&seed=1&skew=1.0``.

    Raises:
        DataError: An argument is unknown or out of range.
    """
    arguments: dict[str, Any] = {}
    for name, value in parse_qsl(urlsplit(path).query, keep_blank_values=True):
        try:
            arguments[name] = _ARGUMENTS[name](value)
        except KeyError:
            raise DataError(f"unknown argument {name!r}; known are {', '.join(_ARGUMENTS)}", about=path) from None
        except ValueError:
            raise DataError(f"{name}={value!r} is not a number", about=path) from None
    if arguments.setdefault("num", 4000) < 1:
        raise DataError(f"num is {arguments['num']}; it must be at least 1", about=path)
    if arguments.setdefault("skew", 1.0) < 0:
        raise DataError(f"skew is {arguments['skew']}; it must not be negative", about=path)
    return generate(arguments["num"], seed=arguments.get("seed", 1), skew=arguments["skew"])


def embedded_records(path: str, unit: Unit) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the turns of the grammar as rows of usual columns, with their places; of a dialogue they name the unit.

    Raises:
        DataError: As for :func:`embedded_turns`, or the unit is a user, of whom the grammar has none.
    """
    if unit == "user":
        raise DataError("the embedded grammar has no users: train with unit=dialogue or unit=utterance", about=path)
    for number, turn in enumerate(embedded_turns(path), 1):
        owner = {"unit": turn.unit} if unit == "dialogue" else {}
        yield (
            f"{path}, turn {number}",
            {"utterance": turn.utterance, "parse": turn.parse, **owner, "label": turn.domain},
        )
