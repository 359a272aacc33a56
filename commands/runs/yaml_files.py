"""YAML files: read, merged, their variables filled in, and read into the fields of a dataclass."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import os
import re
from collections.abc import Container, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from doppel import files
from doppel.console.errors import explain
from doppel.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
#: Where commands run: where relative paths that are not in the caller's folder start, also for code that was copied
#: into a run folder.
PLACE = Path.cwd() if (ROOT / "COMMIT").is_file() else ROOT
#: Keys whose values, or the entries of whose lists, name a file or a folder; and words that stand there for none.
_PATHS = {
    "train_path", "val_path", "train_paths", "test_path", "reference", "train", "test", "labels", "names", "supported",
    "parser", "public_parser", "base_model", "init_weights", "featurizer", "encoder", "generator", "schema", "slots",
    "grammar", "texts", "rows", "examples", "words", "sensitive", "safe", "ledger_path", "tokenizer", "overlays",
    "vocabulary",
}  # fmt: skip
_WORDS = {"reference", "samples", "minilm", "attributes", "none", "grammar"}
#: Keys whose values are mappings of a user's own words.
_OWN_WORDS = {"label_words", "names", "environment"}
Settings = dict[str, Any]
_Fastest: Any = getattr(
    yaml, "CSafeLoader", yaml.SafeLoader
)  # of the same YAML; the first one takes a tenth of the time
#: Keys of what names data, or is called as data call it: all that is below them is text, as it is written.
_IS_OF_DATA = re.compile(
    "name|systems|columns|(train|val|test)_path|train|test|missing|keep_function|reference|labels|label_words|supported"
    "|names|texts|vocabulary|schema|words|sensitive|safe|patterns|rows|examples|(public_)?parser|featurizer|base_model|slots"
    "|environment|commit|parser_digest"
).fullmatch
#: Keys whose own keys are names of stages and systems, of which some are called as what names data.
_BY_NAME = ("epochs", "stages", "variants")


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


def parse_yaml(text: str, below: str = "") -> Any:
    """Parse a text below a dotted key as YAML, also numbers such as 1e-5; what names data is text, and null is None.

    Raises:
        yaml.YAMLError: It is no YAML.
    """
    loader = _Loader(text)
    keys = ["", *below.split(".")]
    try:
        node = loader.get_single_node()
        _leave_texts(node, any(map(_names_data, keys, keys[1:])), keys[-1])
        return None if node is None else loader.construct_document(node)
    finally:
        loader.dispose()


def _names_data(above: str, key: str) -> bool:
    return _IS_OF_DATA(key) is not None and above not in _BY_NAME


def _leave_texts(node: Any, is_text: bool, above: str) -> None:
    """Keys are texts, and so are values where that is said."""
    if isinstance(node, yaml.ScalarNode) and is_text and node.tag != "tag:yaml.org,2002:null":
        node.tag = "tag:yaml.org,2002:str"
    for child in node.value if isinstance(node, yaml.SequenceNode) else ():
        _leave_texts(child, is_text, above)
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        _leave_texts(key, key.tag != "tag:yaml.org,2002:merge", "")
        _leave_texts(value, is_text or _names_data(above, str(key.value)), str(key.value))


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping.

    Raises:
        UserError: It cannot be read, or holds something else.
    """
    content = files.read_yaml(path, parse_yaml)
    if not isinstance(content, dict):
        raise UserError(f"{path} holds {files.kind_of(content)}, not keys with values")
    return content


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


def absolute(value: Any, key: str = "") -> Any:
    """Make paths of settings absolute: from the caller's folder, or else from :data:`PLACE`.

    So what is checked here is what a step reads, whatever folder it runs in.
    """
    if isinstance(value, Mapping):
        return value if key in _OWN_WORDS else {name: absolute(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [absolute(inner, key) for inner in value]
    if not isinstance(value, str) or not value or key not in _PATHS or value in _WORDS:
        return value
    named = os.path.expandvars(os.path.expanduser(value))
    found = (path for path in (os.path.abspath(named), str(PLACE / named)) if os.path.exists(path))
    return next(found, value)


def public_names(value: Any) -> Any:
    """Shorten paths of settings for any reader: to what stands below the project's folder, or to the name."""
    if isinstance(value, Mapping):
        return {name: public_names(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [public_names(inner) for inner in value]
    if not isinstance(value, str) or not os.path.isabs(value):
        return value
    return os.path.relpath(value, PLACE) if value.startswith(f"{PLACE}{os.sep}") else os.path.basename(value)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield dotted keys whose values differ, with both values; None for one that is not there."""
    ours, theirs = flat(old), flat(new)
    for key in dict.fromkeys([*ours, *theirs]):
        if ours.get(key) != theirs.get(key):
            yield key, ours.get(key), theirs.get(key)


def flat(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a mapping by dotted key."""
    inner = {key: flat(value) if isinstance(value, Mapping) else {"": value} for key, value in node.items()}
    return {f"{key}.{name}".rstrip("."): value for key, values in inner.items() for name, value in values.items()}


def listed(value: Any) -> list[Any]:
    """Return a list as it is, and anything else as a list of one."""
    return value if isinstance(value, list) else [value]


@cache
def _parser(cls: type, mappings: tuple[str, ...]) -> Any:
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(cls, skip=set(mappings))
    return parser


def build(
    cls: type,
    content: Mapping[str, Any],
    where: object,
    mappings: tuple[str, ...] = ("environment",),
    said: Container[str] = (),
) -> dict[str, Any]:
    """Read the arguments of a dataclass, each of its type.

    Args:
        cls: The dataclass.
        content: Its fields.
        where: The file or the option that they were given by.
        mappings: Fields whose keys are checked elsewhere.
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

    parts = {key: content.get(key) or {} for key in known if key in mappings}
    for key, value in parts.items():
        if not isinstance(value, dict):
            raise UserError(f"{key} is {value!r}: give keys with values", about=place(key))
    try:
        given = {k: v for k, v in content.items() if k not in mappings}
        whole = {k: int(v) for k, v in given.items() if isinstance(v, float) and v.is_integer()}  # 100.0 of samples
        values = _parser(cls, mappings).parse_object(given | whole)
    except ArgumentError as error:
        key = re.search(r'Parser key "(\w+)', str(error))
        raise UserError(explain(str(error), known, [])[:500], about=place(key[1] if key else "")) from error
    return {**vars(values), **parts}
