"""YAML files: read, merged, their variables filled in, and read into the fields of a dataclass."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import re
from collections.abc import Container, Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import yaml

from doppel import files
from doppel.console.errors import explain
from doppel.errors import UserError
from doppel.settings.facts import Fact, part_of

Settings = dict[str, Any]
_Fastest: Any = getattr(
    yaml, "CSafeLoader", yaml.SafeLoader
)  # of the same YAML; the first one takes a tenth of the time


class _Loader(_Fastest):
    """YAML whose numbers are those of people: 12:00:00 and 0042, of base 60 and 8 in YAML 1.1, are text, as dates are;
    1e-6 and 1e1 are numbers, as in YAML 1.2, and 1e2 is a whole one.
    """


class _Dumper(yaml.SafeDumper):
    """Puts texts in quotes that :class:`_Loader` would read as numbers."""


_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_EXPONENT = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+")
_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, re.compile(rf"(?!.*:|[-+]?0[0-9_])(?:{form.pattern})", re.VERBOSE) if tag in _NUMBERS else form)
        for tag, form in forms
        if tag != "tag:yaml.org,2002:timestamp"
    ]
    for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _yaml in (_Loader, _Dumper):
    _yaml.add_implicit_resolver(_NUMBERS[1], re.compile(rf"{_EXPONENT.pattern}$"), list("-+.0123456789"))


def _float(loader: Any, node: Any) -> float:
    value: float = loader.construct_yaml_float(node)
    return int(value) if _EXPONENT.fullmatch(node.value) and value.is_integer() and abs(value) < 2**53 else value


_Loader.add_constructor(_NUMBERS[1], _float)


def parse_yaml(text: str, fact: Fact | None = None) -> Any:
    """Parse a text as YAML, also numbers such as 1e-5; what a fact says is text stays as it is, and null is None.

    Raises:
        yaml.YAMLError: It is no YAML, or says a key twice.
    """
    return files.parse_yaml(text, _Loader, lambda node: _leave_texts(node, fact or Fact()))


def _leave_texts(node: Any, fact: Fact) -> None:
    """Keys are texts, and so are values where that is said."""
    if isinstance(node, yaml.ScalarNode) and fact.text and node.tag != "tag:yaml.org,2002:null":
        node.tag = "tag:yaml.org,2002:str"
    for child in node.value if isinstance(node, yaml.SequenceNode) else ():
        _leave_texts(child, fact)
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        _leave_texts(key, Fact(text=key.tag != "tag:yaml.org,2002:merge"))
        _leave_texts(value, fact.at(str(key.value)))


def read_yaml(path: Path, fact: Fact | None = None) -> dict[str, Any]:
    """Read a YAML file that holds a mapping, whose texts a fact may tell.

    Raises:
        UserError: It cannot be read, or holds something else.
    """
    return files.mapping_of(files.read_yaml(path, lambda text: parse_yaml(text, fact)), path)


def dump(content: Mapping[str, Any]) -> str:
    """Write a mapping as YAML text."""
    return yaml.dump(dict(content), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merge mappings, key by key at every depth: later ones win, lists replace, ``KEY+`` appends."""
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            old = merged.get(key)
            if isinstance(value, Mapping):
                merged[key] = merge(old if isinstance(old, Mapping) else {}, value)
            elif str(key).endswith("+") and old is not None:
                merged[key] = [*listed(old), *listed(value)]
            else:
                merged[key] = copy.deepcopy(value)
    return merged


def fill_in(value: Any, variables: Mapping[str, str], where: str) -> Any:
    """Replace ``${NAME}`` in all texts of a value.

    Raises:
        UserError: A variable has no value.
    """

    def value_of(match: re.Match[str]) -> str:
        if match[1] not in variables:
            raise UserError(f"{where} names ${match[1]}, which is not set: set it in the shell")
        return variables[match[1]]

    if isinstance(value, str):
        return re.sub(r"\$\{(\w+)\}", value_of, value)
    if isinstance(value, Mapping):
        return {key: fill_in(inner, variables, where) for key, inner in value.items()}
    return [fill_in(inner, variables, where) for inner in value] if isinstance(value, list) else value


def flat(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a mapping by dotted key."""
    inner = {key: flat(value) if isinstance(value, Mapping) else {"": value} for key, value in node.items()}
    return {f"{key}.{name}".rstrip("."): value for key, values in inner.items() for name, value in values.items()}


def listed(value: Any) -> list[Any]:
    """Return a list as it is, and anything else as a list of one."""
    return value if isinstance(value, list) else [value]


@cache
def _parser(cls: type) -> Any:
    """The parser of the fields of a dataclass, and those whose keys are checked elsewhere."""
    from jsonargparse import ArgumentParser

    hints = get_type_hints(cls)
    mappings = {name for name, hint in hints.items() if get_origin(hint) is dict and get_args(hint)[1] is not str}
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(cls, skip=mappings)
    return parser, mappings


def build(cls: type, content: Mapping[str, Any], where: object, said: Container[str] = ()) -> dict[str, Any]:
    """Read the arguments of a dataclass, each of its type; keys of a field's mapping are checked elsewhere.

    Args:
        cls: The dataclass.
        content: Its fields.
        where: The file or the option that they were given by.
        said: Fields that the command line gave, by ``--set``.

    Raises:
        UserError: There is no such field, or a value is of another type; the error says where.
    """

    def place(key: str) -> object:
        return "--set" if key in said else where

    known = [f.name for f in dataclasses.fields(cls)]
    for key in content:
        if key not in known:
            nearest = difflib.get_close_matches(key, known, n=1)
            hint = f": did you mean {nearest[0]!r}?" if nearest else f": there are {', '.join(known)}"
            raise UserError(f"{cls.__name__.lower()} has no field {key!r}{hint}", about=place(key))
    from jsonargparse import ArgumentError

    parser, mappings = _parser(cls)
    parts = {key: content.get(key) or {} for key in known if key in mappings}
    for key, value in parts.items():
        if not isinstance(value, dict):
            raise UserError(f"{key} is {value!r}: give keys with values", about=place(key))
    try:
        given = {k: v for k, v in content.items() if k not in mappings}
        whole = {k: int(v) for k, v in given.items() if isinstance(v, float) and v.is_integer()}  # 100.0 of samples
        values = parser.parse_object(given | whole)
    except ArgumentError as error:
        key = re.search(r'Parser key "(\w+)', str(error))
        raise UserError(explain(str(error), known, [])[:500], about=place(key[1] if key else "")) from error
    hints = get_type_hints(cls)
    try:
        return {**{name: _made(hints[name], value) for name, value in vars(values).items()}, **parts}
    except UserError as error:
        raise UserError(str(error), about=where) from None


def _made(hint: Any, value: Any) -> Any:
    """A value, where its field is a dataclass as one."""
    part = part_of(hint)
    if part is None or value is None:
        return value
    hints = get_type_hints(part)
    return part(**{name: _made(hints[name], inner) for name, inner in vars(value).items()})
