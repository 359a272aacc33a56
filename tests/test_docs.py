"""The pages: links and names of files resolve, and commands are commands."""

from __future__ import annotations

import inspect
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from markdown_blocks import ROOT, anchors, blocks, code, commands, links, words

import cli
from commands.launch import experiment, run
from doppel.console.command import command_parser
from doppel.console.dispatch import load

PAGES = sorted(
    page
    for pattern in ("*.md", "docs/*.md", "slurm/*.md", "configs/**/*.md", "models/**/*.md")
    for page in ROOT.glob(pattern)
)
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
ROOMS = "benchmarks|callbacks|commands|configs|datamodules|docs|doppel|examples|lightning_modules|models|slurm|tests"
_TEMPLATE = re.compile(r"[A-Z]{3,}|[…*{<$]")  # RUN/…, NAME, {a,b}
_OF_A_SITE = {"slurm/site.yaml"}  # that git ignores


@pytest.fixture(params=PAGES, ids=NAMES)
def page(request: pytest.FixtureRequest) -> Path:
    return request.param


def test_links_resolve(page: Path) -> None:
    for link in links(page):
        if link.startswith(("http://", "https://")):
            continue
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), f"there is no {link}"
        if anchor:
            assert anchor in anchors(file), f"{file.name} has no heading {anchor}"


def test_named_files_exist(page: Path) -> None:
    for text in code(page):
        if re.fullmatch(rf"(\./)?({ROOMS})/\S*", text) and not _TEMPLATE.search(text):
            assert (ROOT / text).exists() or text in _OF_A_SITE, f"there is no {text}"


def test_named_modules_exist(page: Path) -> None:
    for text in code(page):
        if re.fullmatch(rf"({ROOMS})(\.\w+)+", text):
            whole, (module, _, name) = ROOT / text.replace(".", "/"), text.rpartition(".")
            if not (whole.is_dir() or whole.with_suffix(".py").is_file()):
                path = ROOT / module.replace(".", "/")
                file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
                assert file.is_file(), f"there is no {text}"
                assert re.search(rf"\b{name}\b", file.read_text(encoding="utf-8")), f"{file} has no {name}"


def _our_commands(page: Path) -> list[list[str]]:
    """Words of every ``python cli.py …`` of a page; what stands for anything is left out."""
    found = [words(command) for command in commands(page) if "cli.py" in command]
    return [split[2:] for split in found if split[:2] == ["python", "cli.py"]]


@cache
def _parser(name: str) -> Any:
    function = load(cli.COMMANDS[name])
    if list(inspect.signature(function).parameters) == ["argv"]:
        return None
    return command_parser(function, f"cli.py {name}")


def test_commands_parse(page: Path) -> None:
    for split in _our_commands(page):
        name, *rest = split
        if name == "--help":
            continue
        assert name in cli.COMMANDS, f"there is no command {name}"
        parser = _parser(name)
        if parser is not None and not {"…", "--help"} & set(rest):
            parser.parse_args(rest)
        for word in rest:
            file = word.partition("=")[2] or word
            if file.startswith(("configs/", "models/", "slurm/")) and not _TEMPLATE.search(file):
                assert (ROOT / file).exists(), f"there is no {file}"
        if parser is None:
            options = {word.partition("=")[0] for word in rest if word.startswith("--")}
            known = re.compile(
                r"--(config|run_dir|ckpt_path|print_config|help|seed_everything|(trainer|model|data|privacy)(\.\w+)*\+?)"
                + (r"|--(canaries|num_canaries|num_samples)" if name == "audit" else "")
            )
            assert all(known.fullmatch(option) for option in options), f"{name} has no {options}"


def test_experiments_of_commands_read_their_changes(page: Path) -> None:
    for split in _our_commands(page):
        if split[0] == "run" and not {"…", "--help"} & set(split) and not _TEMPLATE.search(split[1]):
            given = vars(_parser("run").parse_args(split[1:]))
            experiment.load(ROOT / split[1], run._values(given["set"]))


def test_shell_blocks_say_that_they_are_shell(page: Path) -> None:
    for block in blocks(page):
        assert block.language or "python " not in block.text, f"line {block.line}: write ```bash"
