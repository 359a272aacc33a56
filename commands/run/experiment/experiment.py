"""An experiment: read from its file, what that is based on and NAME=VALUE words of the command line; and written."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from commands.run.experiment.checks import check
from commands.run.experiment.settings import FACTS, Experiment
from commands.run_folder.places import ROOT, absolute
from commands.run_folder.sections import SECTIONS, read_experiment, with_sections
from commands.run_folder.systems import USUAL
from doppel.console.say import say
from doppel.errors import UserError
from doppel.files import write_text
from doppel.settings.facts import Fact
from doppel.settings.yaml_files import build, dump, fill_in, flat, listed, merge, parse_yaml

Point = dict[str, Any]
EXPERIMENTS = ROOT / "configs" / "experiments"


def load(path: Path, changes: Mapping[str, Any] | None = None) -> Experiment:
    """Read an experiment.

    Args:
        path: Its file, such as ``configs/experiments/quickstart.yaml``, or a run's ``experiment.yaml``; in the caller's
            folder, or else in the project's.
        changes: Fields in place of the file's, by dotted name: ``{"epsilon": 3, "data.batch_size": 64}``. Sections win
            over all that the file says of single stages and systems
            (:func:`~commands.run_folder.sections.with_sections`).

    Returns:
        The experiment, with ``base`` and ``at_epsilon`` worked in, variables filled in, and absolute paths.

    Raises:
        UserError: The file, or one that it is based on, is not an experiment.
    """
    path = path if path.is_file() or not (ROOT / path).is_file() else ROOT / path
    content = merge({"name": path.stem}, _read(path, ()))
    nested: dict[str, Any] = {}
    said: dict[str, str] = {}
    for key, value in (changes or {}).items():
        words = key.split(".")
        if words[0] in SECTIONS and words[1:2] == ["init_args"]:  # as `fit` calls it
            del words[1]
        for word in reversed(words):
            value = {word: value}
        for leaf in flat(value):
            if said.setdefault(leaf, key) != key:
                raise UserError(f"{leaf} is given twice, by {said[leaf]} and by {key}: give one of them")
        nested = merge(nested, value)
    epsilon = nested.get("epsilon", content.get("epsilon", Experiment.epsilon))
    for key, fields in merge(*(part.pop("at_epsilon", None) or {} for part in (content, nested))).items():
        if _epsilon(key, path) == _epsilon(epsilon, path):
            content = merge(content, fields or {})
    given = {name: nested[name] for name in SECTIONS if name in nested}
    for name, section in given.items():
        if not isinstance(section, dict):
            hint = "; `epsilon: inf` trains without privacy" if name == "privacy" else ""
            raise UserError(f"{name} is {section!r}: give keys with values{hint}", about="--set")
    content = merge(with_sections(content, given), nested)
    if "epsilon" in content:
        content["epsilon"] = _epsilon(content["epsilon"], path)
    variables = (content.get("environment") or {}).items()
    content["environment"] = {name: os.environ.get(name, value) for name, value in variables}
    if content.get("systems") is not None:
        content["systems"] = [name.strip() for names in listed(content["systems"]) for name in str(names).split(",")]
    filled = absolute(fill_in(content, {**os.environ, **content["environment"]}, str(path)), FACTS)
    parts = [filled.get(field) for field in ("stages", "variants")]
    for sections in (filled, *(part for named in parts if isinstance(named, dict) for part in named.values())):
        _make_numbers(sections, path)
    values = build(Experiment, filled, path, said=nested)
    values["systems"] = values["systems"] or list(USUAL)
    experiment = Experiment(**values)
    check(experiment, path)
    return experiment


def shipped(name: str) -> Path:
    """Return the file of a shipped experiment."""
    return EXPERIMENTS / f"{name}.yaml"


def save(experiment: Experiment, path: Path) -> None:
    """Write an experiment as :func:`load` reads it."""
    write_text(path, dump(experiment.as_dict()))


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


def joined(values: Point, more: Point, names: tuple[str, str]) -> Point:
    """Join fields that two options give.

    Args:
        values: Of the first option.
        more: Of the second one.
        names: How each option is given, with places for a field and its value.

    Raises:
        UserError: Both give one.
    """
    for name in values.keys() & more.keys():
        first, second = (
            form.format(name, ",".join(map(str, listed(own[name]))))
            for form, own in zip(names, (values, more), strict=True)
        )
        raise UserError(f"{name} is given twice, by {first} and by {second}: give one of them")
    return values | more


def _read(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    """A file on top of its base."""
    if not path.is_file():
        raise UserError(f"there is no experiment {path}: give a file, such as {shipped('quickstart')}")
    if path in seen:
        raise UserError(f"{path} is based on itself")
    content = read_experiment(path, FACTS)
    if content.pop("fluent", False):  # of a run that has spent its ε, perhaps: it chose samples alone
        say(f"note: {path} has fluent, which is gone: samples are drawn without it")
    files = [path.parent / f"{base}.yaml" for base in listed(content.pop("base", []))]
    bases = [_read(file if file.is_file() else shipped(file.stem), (*seen, path)) for file in files]
    return merge(*bases, content)


def _make_numbers(sections: Any, path: Path) -> None:
    """Make numbers of texts, such as those of variables, where a field is a number."""
    for section, fact in SECTIONS.items():
        given: Any = sections.get(section) if isinstance(sections, dict) else None
        for name in given if isinstance(given, dict) else ():
            if fact.at(name).number and isinstance(given[name], str | bool):
                number = _number(given[name], f"{section}.{name}", path)
                given[name] = int(number) if number.is_integer() else number


def _number(value: Any, name: str, path: Path) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number):
        raise UserError(f"{name} is {value}: give a number", about=path)
    return number


def _epsilon(value: Any, path: Path) -> float:
    epsilon = _number(value, "epsilon", path)
    if not epsilon > 0:
        raise UserError(f"epsilon is {value}: give a number above 0, or inf", about=path)
    return epsilon


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
