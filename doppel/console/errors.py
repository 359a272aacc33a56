"""Errors of the command line that name the key, the file and the nearest key that exists."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import os
import re
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, get_type_hints

import yaml

from doppel.errors import UserError
from doppel.files import mapping_of, read_yaml

_UNKNOWN_KEY = re.compile(r"(?:does not accept option '|[Uu]nrecognized arguments: --|Key \"|Option ')([\w.-]+)")
_UNKNOWN_ARGUMENT = re.compile(r"class_path '([\w.]+)':\s+Option '([\w.]+)' is not accepted")
_UNKNOWN_IN_GROUP = re.compile(r"class_path '([\w.]+)':\s+Group '(\w+)' does not accept option '([\w.]+)'")
_MISSING = object()
#: What a value of a type looks like.
_EXPECTED = {
    "int": "a whole number, such as 3",
    "float": "a number, such as 0.5",
    "bool": "true or false",
    "list": "a list, such as [a, b]",
    "dict": "keys with values, such as {a: 1}",
    "str": "text",
    "NoneType": "null",
}


class NearestKey:
    """Mixin for a jsonargparse parser: options are not abbreviated, and a wrong key is answered by the nearest one.

    An abbreviation is a typo that starts a job: ``--trainer.max_epoch`` would pass for ``max_epochs`` today, and for
    something else when another option begins alike.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "allow_abbrev": False})

    def parse_args(self: Any, args: Any = None, *more: Any, **options: Any) -> Any:
        """Read words; ``--key=None`` is ``--key=null``, as jsonargparse itself writes it of an argument in a class."""
        if args is not None:
            args = [re.sub(r"^(--[\w.]+)=None$", r"\1=null", word) for word in args]
            for path in filter(os.path.isfile, _config_files(args)):
                _refuse_other_letters(path)
                mapping_of(read_yaml(path), path)  # refuses a key that stands twice; jsonargparse takes the last one
        return super().parse_args(args, *more, **options)  # type: ignore[misc]

    def error(self: Any, message: str, ex: Exception | None = None) -> NoReturn:
        """Say what is wrong in few lines, instead of the usage of several hundred options.

        Raises:
            UserError: Always, where jsonargparse would leave the process.
        """
        if not self.exit_on_error:
            super().error(message, ex)  # type: ignore[misc]
        parser = getattr(ex, "subcommand_parser", None) or self
        known = [option.lstrip("-") for action in parser._actions for option in action.option_strings]
        prog = parser.prog.replace(" [options]", "")
        raise UserError(f"{explain(message, known, sys.argv[1:])}\n`{prog} --help` lists the options") from ex


def explain(message: str, known: Iterable[str], arguments: list[str]) -> str:
    """Explain a message of jsonargparse, with the nearest option and the file that holds the wrong one.

    Args:
        message: What jsonargparse says.
        known: Options of the parser, with dots.
        arguments: The command line.
    """
    if match := _UNKNOWN_ARGUMENT.search(message):
        path, key = match.groups()
        candidates: Iterable[str] = _parameters(path)
        what = f"{path.rsplit('.', 1)[-1]} has no argument {key!r}"
    elif match := _UNKNOWN_IN_GROUP.search(message):
        path, group, key = match.groups()
        candidates = _fields(path, group)
        what = f"{group} has no {key!r}"
    elif match := _UNKNOWN_KEY.search(message):
        key = match[1]
        candidates = known
        what = f"there is no option {key!r}"
    else:
        return _reason(" ".join(message.split()))
    files = [path for path in _config_files(arguments) if _has_key(path, key.split("."))]
    where = f" ({', '.join(files)})" if files else ""
    nearest = difflib.get_close_matches(key, sorted(set(candidates)), n=1, cutoff=0.6)
    return what + where + (f": did you mean {nearest[0]!r}?" if nearest else "")


def _reason(message: str) -> str:
    """The key whose value does not fit, with dots, and why; without the other types that were tried."""
    before, *parts = re.split(r'Parser key "([\w.-]+)":', message)
    if not parts:
        return message
    keys = []
    for key, text in zip(parts[::2], parts[1::2], strict=True):
        keys.append(key)
        if "Problem with given class_path" not in text:
            break
    value = re.search(r"(?:Got value|Given value): (?:NestedArg\(.*val=)?'?([^ ')]*)", text)
    if match := re.search(r"expects a function or a callable class: (.*?)\.* Got value", text):
        text = match[1]
    elif match := re.search(r"Problem with given class_path '[\w.]*\.(\w+)': (.*?)(?: - |$)", text):
        text = f"{match[1]}: {match[2]}"
    elif match := re.search(r"(\S*) ?does not conform to restriction v(>=?)(\S+)(?: and v<=?([\d.]+))?", text):
        wrong = "not between" if match[4] else "not above" if match[2] == ">" else "below"  # a number of a range
        most = f" and {match[4]}" if match[4] else ""
        text = f"{value[1] if value else match[1]} is {wrong} {match[3]}{most}"
    elif match := re.search(r"Not of type [A-Za-z]*(Int|Float): .*: ('.*?')", text):
        text = f"{match[2]} does not fit: give {_EXPECTED[match[1].lower()]}"
    elif value and (expected := _expected(text)):
        given = {"None": "null"}.get(value[1], value[1])
        text = f"{given!r} does not fit: give {expected}"
    return f"{before}{'.'.join(keys)}: {text.strip()}"


def _expected(text: str) -> str:
    """What a value should look like, of the types that it was held against; "" if that is not said."""
    union = re.match(r"\W*Does not validate against any of the Union subtypes Subtypes: (.*?\]) Errors", text)
    types = re.findall(r"<class '(?:\w+\.)*(\w+)'>|Literal\[(.*?)\]", union[1] if union else text)
    named = [_EXPECTED.get(name, f"the fields of {name}") if name else _any_of(choices) for name, choices in types]
    return " or ".join(named if union else named[:1])


def _any_of(choices: str) -> str:
    return f"one of {choices}".replace("'", "")


def _parameters(class_path: str) -> list[str]:
    module, _, name = class_path.rpartition(".")
    try:
        target = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        return []
    classes = target.__mro__ if inspect.isclass(target) else (target,)
    return [name for cls in classes for name in inspect.signature(cls).parameters if name not in ("args", "kwargs")]


def _fields(class_path: str, argument: str) -> list[str]:
    """Names of the fields of an argument of a class that is a dataclass."""
    module, _, name = class_path.rpartition(".")
    classes = getattr(import_module(module), name).__mro__
    hints = [get_type_hints(cls.__init__).get(argument) for cls in classes if "__init__" in vars(cls)]
    return [field.name for hint in hints if dataclasses.is_dataclass(hint) for field in dataclasses.fields(hint)]


def _refuse_other_letters(path: str) -> None:
    """Refuse a file that jsonargparse, which reads UTF-8 alone, would end in a traceback at."""
    try:
        Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not in UTF-8: save it as UTF-8") from None


def _config_files(arguments: list[str]) -> list[str]:
    """Files given by ``--config FILE``, ``--config=FILE`` or ``-c FILE``."""
    pairs = zip(arguments, arguments[1:], strict=False)
    files = [value for name, value in pairs if name in ("--config", "-c")]
    return files + [a.split("=", 1)[1] for a in arguments if a.startswith("--config=")]


def _has_key(path: str, parts: list[str]) -> bool:
    """Whether a YAML file holds a key, somewhere below its top."""
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return False

    def below(node: Any) -> bool:
        if isinstance(node, dict):
            inner: Any = node
            for part in parts:
                inner = inner.get(part, _MISSING) if isinstance(inner, dict) else _MISSING
            return inner is not _MISSING or any(map(below, node.values()))
        return isinstance(node, list) and any(map(below, node))

    return below(content)
