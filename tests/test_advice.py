"""What the product's messages advise: every setting, option and command that one names is there, and is taken."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from functools import cache
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import pytest
from documented_settings import keys, other
from lightning.pytorch import Trainer
from source_modules import ROOT

import cli
from cli import COMMANDS, MORE, STEPS
from commands.run.experiment.experiment import load, read_values, shipped
from commands.run.experiment.settings import FACTS
from datamodules.parser_data_module import ParserDataModule
from docs.reference import SECTIONS
from doppel.console.command import command_parser, reads_words
from doppel.console.command import load as load_command
from doppel.errors import UserError
from lightning_modules.semantic_parser import SemanticParser

PRODUCT = ("cli.py", "doppel", "datamodules", "lightning_modules", "callbacks", "commands")
#: Stands for what a message fills in.
HOLE = "\0"
TARGETS = {
    **STEPS,
    **{name: target for group in (*COMMANDS.values(), *MORE.values()) for name, target in group.items()},
}
#: Programs of others, whose options are not ours.
_OTHERS = re.compile(r"pip install|squeue|sbatch|srun|git |vLLM")


class Message(NamedTuple):
    """A text of the product, and where it stands."""

    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text.replace(HOLE, '…')}"


@cache
def messages() -> list[Message]:
    """Every text of the product that is no docstring and has words."""
    found = []
    for place in PRODUCT:
        for path in [ROOT / place] if place.endswith(".py") else sorted((ROOT / place).rglob("*.py")):
            tree = ast.parse(path.read_text())
            nodes = list(ast.walk(tree))
            inner = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
            inner |= {id(node.value) for node in nodes if isinstance(node, ast.Expr)}  # docstrings
            inner -= {id(node) for node in nodes if isinstance(node, ast.JoinedStr)}
            for node in nodes:
                parts = [node] if isinstance(node, ast.Constant) else getattr(node, "values", [])
                if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in inner:
                    text = "".join(
                        str(getattr(part, "value", "")) if isinstance(part, ast.Constant) else HOLE for part in parts
                    )
                    if len(text.split()) > 2:
                        found.append(Message(f"{path.relative_to(ROOT)}:{node.lineno}", text))
    return found


@cache
def documented() -> frozenset[str]:
    """Every key that the reference has, and those of Lightning's Trainer and of the parser, by dotted name."""
    classes = {**SECTIONS, "trainer": Trainer, "model.": SemanticParser, "data.": ParserDataModule}
    return frozenset(
        f"{'' if title == 'Experiment' else title.rstrip('.') + '.'}{name}"
        for title, kind in classes.items()
        for name in inspect.signature(kind).parameters
    )


_SECTIONS = "|".join(name for name, fact in FACTS.keys.items() if fact.keys or fact.each or name == "epochs")
_NAME = rf"(?:(?:{_SECTIONS})(?:\.[\w{HOLE}]+)+|(?:{'|'.join(FACTS.keys)})(?==))"
SETTING = re.compile(rf"(?<![\w./{HOLE}-])({_NAME})(?!\.?[\w(])(?:=(?:'([^']+)'|([^\s,;:)]+)))?")


def is_documented(key: str) -> bool:
    """Whether there is such a setting; what a message fills in may be anything."""
    words = [word for word in key.split(".") if word != "init_args"]
    if words[0] in ("stages", "variants"):
        words = words[2:]
    if not words or words[0] == "epochs" or words[1:] == ["class_path"]:
        return True
    pattern = re.compile(r"\.".join(word.replace(HOLE, r"\w*") for word in words))
    return any(pattern.fullmatch(known) for known in documented())


def settings(message: Message) -> Iterator[tuple[str, str | None]]:
    """The settings that a message names, each with the value that it says."""
    for match in SETTING.finditer(message.text):
        if match[1] != "model.safetensors":  # a file
            yield match[1], match[2] or match[3]


def test_every_setting_that_a_message_names_is_documented() -> None:
    named = {key: message for message in messages() for key, _ in settings(message)}
    assert len(named) > 60, "they are found"
    unknown = [f"{key} of {message}" for key, message in named.items() if not is_documented(key)]
    assert not unknown, "\n".join(unknown)


@pytest.mark.parametrize("key", sorted({key for m in messages() for key, _ in settings(m) if HOLE not in key}))
def test_an_experiment_takes_each_setting_that_a_message_names(key: str, tmp_path: Path) -> None:
    """With the value that a message says, or with one of its type; another field may be asked for beside it."""
    kinds = {name: (kind, default) for name, kind, default in keys()}
    plain = key.replace("init_args.", "")
    said = [value for m in messages() for name, value in settings(m) if name == key and value and HOLE not in value]
    values = [v for text in said if not re.search("[A-Z]{2}", text) for v in [read_values([f"{plain}={text}"])[plain]]]
    if plain in kinds:
        values.append(other(plain, *kinds[plain], tmp_path))
    base = {"data.train_path": "mine.csv", "systems": ["one_stage"]}
    for value in values:
        try:
            given = load(shipped("own-data-small"), {**base, plain: value})
        except UserError as error:
            assert re.search("give|leave|needs|set", str(error)), error
            assert not re.search(r"has no (field|stage|section)|does not fit|is no YAML", str(error)), (
                key,
                value,
                error,
            )
        else:
            field, *inner = plain.split(".")
            assert inner or getattr(given, field) == value


@cache
def options() -> frozenset[str]:
    """Every option of every command."""
    found = {"--help"}
    for name, target in TARGETS.items():
        function = load_command(target)
        if reads_words(function):
            with suppress(SystemExit), redirect_stdout(told := StringIO()):
                cli.main([name, "--help"])
            found.update(re.findall(r"--[\w.]+", told.getvalue()))
        else:
            actions = command_parser(function, name)._actions
            found.update(option for action in actions for option in action.option_strings)
    return frozenset(found)


def test_every_option_that_a_message_names_is_one_of_a_command() -> None:
    unknown = []
    for message in messages():
        for option in re.findall(rf"(?<![\w-])--[a-z][\w{HOLE}-]*(?:\.[\w{HOLE}]+)*", message.text):
            is_ours = option in options() or is_documented(option.removeprefix("--"))
            if not is_ours and not _OTHERS.search(message.text):
                unknown.append(f"{option} of {message}")
    assert not unknown, "\n".join(unknown)


COMMAND = re.compile(rf"python cli\.py (?:step )?([\w-]+)((?: (?:[\w./{HOLE}=-]+))*)")


@pytest.mark.parametrize("message", [m for m in messages() if COMMAND.search(m.text)], ids=lambda m: m.where)
def test_every_command_that_a_message_names_is_parsed(message: Message) -> None:
    """As far as it is a command: the sentence goes on in small letters."""
    for name, rest in COMMAND.findall(message.text):
        if name == "COMMAND":
            continue
        assert name in TARGETS, message
        words = [word.replace(HOLE, "PLACE") for word in rest.split()]
        words = ["5" if word == "N" else word for word in words]
        while words and re.fullmatch("[a-z]+", words[-1]) and words[-2:-1] != ["--words"]:
            words.pop()  # such as `first`
        function = load_command(TARGETS[name])
        if not words or reads_words(function):  # named, not given; the latter are tried by tests of their own
            continue
        if words[-1] == "--words":  # which a reader fills in
            words.append("rental")
        command_parser(function, name).parse_args(words)
