"""NAME=VALUE words of the command line, and the grid of NAME=VALUE,VALUE words."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import yaml

from commands.run.experiment.settings import FACTS
from doppel.errors import UserError
from doppel.settings.facts import Fact
from doppel.settings.yaml_files import parse_yaml

Point = dict[str, Any]


def read_values(words: list[str] | None, facts: Fact = FACTS) -> Point:
    """Read fields and their values, from NAME=VALUE words: of an experiment, or of what facts tell.

    Raises:
        UserError: A word is no such pair, or a name is given twice.
    """
    return {name: _value(text, facts.below(name)) for name, text in _pairs(words or [])}


def read_grid(words: list[str]) -> list[Point]:
    """Return all combinations of the values of fields, from NAME=VALUE,VALUE words; the last field varies fastest.

    Raises:
        UserError: A word is no such pair, its values are no YAML, none, or one of them twice.
    """
    choices = {name: _value(f"[{text}]", FACTS.below(name)) for name, text in _pairs(words)}
    for name, values in choices.items():
        if not values:
            raise UserError(f"--grid: {name} has no value: give some, such as {name}=1,2")
        for place, value in enumerate(values):
            if value in values[:place]:
                raise UserError(f"--grid: {name} is {value} twice, in two runs of equal settings: give it once")
    return [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]


def joined(values: Point, more: Point) -> Point:
    """Join fields that two options give.

    Raises:
        UserError: Both give one.
    """
    for name in values.keys() & more.keys():
        raise UserError(f"{name} is given twice, as {values[name]} and as {more[name]}: give it once")
    return values | more


def _pairs(words: list[str]) -> Iterator[tuple[str, str]]:
    seen = set()
    for word in words:
        name, sign, text = word.removeprefix("--").partition("=")
        if not sign:
            raise UserError(f"{word!r} is no NAME=VALUE: give one such as data.batch_size=64")
        if name in seen:
            raise UserError(f"{name} is given twice: give it once")
        seen.add(name)
        yield name, text


def _value(text: str, fact: Fact) -> Any:
    """A text as a YAML file has it."""
    try:
        return parse_yaml(text, fact)
    except yaml.YAMLError as error:
        raise UserError(f"{text!r} is no YAML: {' '.join(str(error).split())}") from error
