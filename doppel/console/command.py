"""The parser of a command, read from its function."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import inspect
import re
import types
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn, Union, get_args, get_origin, get_type_hints

import docstring_parser
from jsonargparse import ActionYesNo, ArgumentParser, DefaultHelpFormatter

from doppel.console.errors import NearestKey
from doppel.errors import DataError, UserError
from doppel.files import is_same_file

#: Options that name a file to write.
WRITTEN = {"out", "csv", "to_sheet"}
#: Options of commands that read a table: an experiment, and what is told of the table, calls them ``data.NAME``.
READ = {"columns", "unit"}


class HelpFormatter(DefaultHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Keeps the paragraphs of a docstring; an option says that it is required, or its default, and no type."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = re.sub(r" ?Default(?:s to|:) ``[^`]*``\.?", "", action.help or "")  # Lightning's own, told below
        text = re.sub(r":\w+:`~?(?:\w+\.)*(\w+)`", r"\1", text).replace("``", "`")
        if action.required:
            return f"{text} (required)"
        is_bare = action.nargs == 0 or action.default in (None, [], {}, argparse.SUPPRESS)  # a flag, or no default
        return text if is_bare or "class_path" in str(action.default) else f"{text} (default: %(default)s)"

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        return super()._format_args(action, default_metavar).replace(",null}", "}")


class CommandParser(NearestKey, ArgumentParser):
    """Reads the words of a command."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Say what is wrong, with options as a user types them."""
        for action in self._actions:
            if action.option_strings:
                message = re.sub(rf"(?<![\w-]){re.escape(action.dest)}\b", action.option_strings[-1], message)
        super().error(message, ex)


def load(target: str) -> Callable[..., int | None]:
    """Return the function that ``"module:function"`` names."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def reads_words(function: Callable[..., int | None]) -> bool:
    """Return whether a command reads its words itself: its one parameter is called ``argv``."""
    return list(inspect.signature(function).parameters) == ["argv"]


def command_help(function: Callable[..., Any]) -> dict[str, Any]:
    """Return what a parser tells of a command: the text of its docstring, and below the options its examples."""
    docstring = _docstring(function)
    examples = "".join(f"\nexample:\n{example.description}\n" for example in docstring.examples)
    return {"description": docstring.description, "epilog": examples}


def command_parser(function: Callable[..., Any], prog: str) -> CommandParser:
    """Build the parser of a command.

    Parameters before ``*`` are positional, in their order; those behind it are options, ``num_samples`` as
    ``--num-samples``. What has no default is required. ``list[T]`` takes several words and an option of it may be
    repeated, ``bool`` is a flag, a dataclass is a group of options. The docstring of the function, in Google's style,
    is the help.

    Args:
        function: The command.
        prog: What a user types before its arguments.
    """
    helps = {p.arg_name: " ".join((p.description or "").split()) for p in _docstring(function).params}
    hints = get_type_hints(function)
    parser = CommandParser(prog=prog, formatter_class=HelpFormatter, **command_help(function))
    for parameter in inspect.signature(function).parameters.values():
        name, hint, default = parameter.name, hints[parameter.name], parameter.default
        is_option, is_required = parameter.kind is parameter.KEYWORD_ONLY, default is parameter.empty
        settings: dict[str, Any] = {"help": helps.get(name)} | ({} if is_required else {"default": default})
        item = _item(hint)
        if is_option and hint is bool:
            settings["action"] = "store_true" if default is False else ActionYesNo
        elif item is not None:
            settings |= {"type": item, "nargs": "+" if is_required else "*"}
            if is_option and (is_required or not default):
                settings["action"] = "extend"
        else:
            settings |= {"type": hint} if is_option or is_required else {"type": hint, "nargs": "?"}
        if is_option:
            parser.add_argument("--" + name.replace("_", "-"), required=is_required, **settings)
        else:
            parser.add_argument(name, **settings)
    parser.add_argument("--config", action="config", help="YAML file of these arguments, by their names.")
    return parser


def call(function: Callable[..., int | None], words: list[str], prog: str) -> int:
    """Call a command with the words of a command line.

    An option that takes NAME=VALUE of a dataclass's fields says so, ``Annotated[list[str], Class]``: ``--NAME=VALUE``
    stands for it where the command has no such option itself.

    Returns:
        Its exit status, 0 if it returns none.

    Raises:
        UserError: A word fits no option, or a value not its type.
    """
    parser = command_parser(function, prog)
    fields = _fields(function)
    options = {option.replace("-", "_"): option for action in parser._actions for option in action.option_strings}
    heads = [word.partition("=") for word in words]
    words = [options.get(head.replace("-", "_"), head) + equals + value for head, equals, value in heads]
    for place, word in reversed(list(enumerate(words))):
        head, equals, value = word.partition("=")
        name = head.removeprefix("--").replace("-", "_")
        if head.startswith("--") and head not in options.values() and name.split(".")[0] in fields:
            if not equals and "".join(words[place + 1 : place + 2])[:2] in ("", "--"):
                raise UserError(f"{head} has no value: give {head}=VALUE")
            value = value if equals else words.pop(place + 1)
            words[place] = f"{fields[name.split('.')[0]]}={name}={value}"
    if fields:
        _refuse_twice(parser, words)
    values = vars(parser.instantiate(parser.parse_args(words)))
    if (values.get("seed") or 0) < 0:
        raise UserError(f"--seed is {values['seed']}: give a number from 0 on")
    _refuse_own_input({p: values[p] for p in inspect.signature(function).parameters})
    parameters = inspect.signature(function).parameters.values()
    positional = [values[p.name] for p in parameters if p.kind is not p.KEYWORD_ONLY]
    try:
        return function(*positional, **{p.name: values[p.name] for p in parameters if p.kind is p.KEYWORD_ONLY}) or 0
    except DataError as error:
        message = str(error)
        for name in READ & values.keys():
            message = re.sub(rf"\bdata\.{name}\b", f"--{name}", message)
        if message == str(error):
            raise
        raise DataError(message) from error


def _refuse_twice(parser: CommandParser, words: list[str]) -> None:
    """Refuse an option that is given twice and takes one value, of which argparse would take the last in silence: where
    a command takes fields of an experiment, such as its ε.

    Raises:
        UserError: There is one.
    """
    one = {
        option
        for action in parser._actions
        for option in action.option_strings
        if action.nargs is None and action.dest != "config"
    }
    given = [head for word in words if (head := word.partition("=")[0]) in one]
    for option in dict.fromkeys(given):
        if given.count(option) > 1:
            raise UserError(f"{option} is given twice: give it once")


def _refuse_own_input(values: Mapping[str, Any]) -> None:
    """Refuse to write to a file that the command also reads: half of it would be gone where it ends early.

    Raises:
        UserError: What one of :data:`WRITTEN` names is another argument's file.
    """
    for target in WRITTEN & values.keys():
        out = values[target]
        for name, value in values.items():
            for read in value if isinstance(value, list | tuple) else [value]:
                if name != target and isinstance(read, str | Path) and is_same_file(out, read):
                    option = f"--{target.replace('_', '-')}"
                    raise UserError(f"{option} is the file that is read: give another {option}", about=str(out))


def check_options(function: Callable[..., Any], values: Mapping[str, Any], way: str, takes: Collection[str]) -> None:
    """Refuse options of a command that the way it is called does not take, and which would be passed over.

    Args:
        function: The command.
        values: Its arguments; one that has its default is no matter.
        way: What the user asks for, such as ``--labels``.
        takes: Names of the parameters that it takes.

    Raises:
        UserError: Another one is given.
    """
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in takes and values[name] != parameter.default:
            option = f"--{name.replace('_', '-')}" if parameter.kind is parameter.KEYWORD_ONLY else name.upper()
            raise UserError(f"{option} does not belong to {way}: leave it out")


def _fields(function: Callable[..., Any]) -> dict[str, str]:
    """Fields that an option of a command sets by NAME=VALUE → that option."""
    hints = get_type_hints(function, include_extras=True).items()
    classes = [(name, cls) for name, hint in hints for cls in getattr(hint, "__metadata__", ())]
    return {field.name: f"--{name}" for name, cls in classes for field in dataclasses.fields(cls)}


def _docstring(function: Callable[..., Any]) -> docstring_parser.Docstring:
    return docstring_parser.parse(inspect.getdoc(function) or "", docstring_parser.DocstringStyle.GOOGLE)


def _item(hint: Any) -> Any:
    """T of ``list[T]`` and of ``list[T] | None``; None of any other type."""
    if get_origin(hint) in (Union, types.UnionType):
        hint = next((part for part in get_args(hint) if get_origin(part) is list), hint)
    return get_args(hint)[0] if get_origin(hint) is list else None
