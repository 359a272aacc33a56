"""The pages: links and names of files resolve, and commands are commands."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from markdown_blocks import ROOT, anchors, blocks, code, commands, links, words

import cli
from commands.lightning import train
from commands.pipeline import run
from commands.pipeline.experiment import load as load_experiment
from commands.pipeline.experiment import shipped
from commands.pipeline.recipes import steps_of
from doppel.console.command import command_parser
from doppel.console.dispatch import load

PAGES = sorted(
    page
    for pattern in ("*.md", "docs/*.md", "slurm/*.md", "configs/**/*.md", "models/**/*.md")
    for page in ROOT.glob(pattern)
)
COMMENTED = sorted(file for file in (ROOT / "configs").rglob("*.yaml") if "python cli.py" in file.read_text("utf-8"))
ROOMS = "benchmarks|callbacks|commands|configs|datamodules|docs|doppel|lightning_modules|models|slurm|tests"
TARGETS = {name: target for group in (cli.COMMANDS | cli.MORE).values() for name, target in group.items()}
TRAINERS = ("fit", "validate", "test", "predict", "audit")
_TEMPLATE = re.compile(r"[A-Z]{3,}|[…*{<$]")  # RUN/…, NAME, {a,b}
_OF_A_SITE = {"slurm/site.yaml"}  # that git ignores


@pytest.fixture(params=PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def page(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture(params=[*PAGES, *COMMENTED], ids=lambda page: str(page.relative_to(ROOT)))
def text(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("DOPPEL_DATA", str(tmp_path))
    monkeypatch.setenv("PUBLIC", "public.jsonl")
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
        if re.fullmatch(rf"({ROOMS})/\S*", text) and not _TEMPLATE.search(text):
            path, _, name = text.partition(":")
            assert (ROOT / path).exists() or path in _OF_A_SITE, f"there is no {text}"
            if name:
                last = re.findall(r"\w+", name.partition("[")[0])[-1]
                assert f" {last}" in (ROOT / path).read_text(encoding="utf-8"), f"{path} has no {name}"


def test_named_modules_exist(page: Path) -> None:
    for text in code(page):
        if re.fullmatch(rf"({ROOMS})(\.\w+)+", text):
            whole, (module, _, name) = ROOT / text.replace(".", "/"), text.rpartition(".")
            if not (whole.is_dir() or whole.with_suffix(".py").is_file()):
                path = ROOT / module.replace(".", "/")
                file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
                assert file.is_file(), f"there is no {text}"
                assert re.search(rf"\b{name}\b", file.read_text(encoding="utf-8")), f"{file} has no {name}"


def test_shell_blocks_say_that_they_are_shell(page: Path) -> None:
    for block in blocks(page):
        assert block.language or "python " not in block.text, f"line {block.line}: write ```bash"


def test_commands_parse(text: Path) -> None:
    for name, *rest in _commands(text):
        if name in (*TRAINERS, "--help"):  # which read their words themselves
            continue
        assert name in TARGETS, f"there is no command {name}"
        _files_exist(rest)
        if "--help" not in rest:
            given = command_parser(load(TARGETS[name]), f"cli.py {name}").parse_args(rest)
            if name == "run":
                load_experiment(ROOT / given.experiment, run.read_values(given.set))


def test_trainings_parse(text: Path, tmp_path: Path) -> None:
    for name, *rest in _commands(text):
        if name in TRAINERS:
            _files_exist(rest)
            rest = [_made(tmp_path, word) if n and rest[n - 1] == "--config" else word for n, word in enumerate(rest)]
            with contextlib.redirect_stdout(io.StringIO()), pytest.raises(SystemExit) as end:
                getattr(train, name.replace("audit", "fit"))([*rest, "--print_config"])
            assert not end.value.code


def _commands(page: Path) -> Iterator[list[str]]:
    """Words of every ``python cli.py …`` of a page; those with … stand for others."""
    split = [words(command) for command in commands(page)]
    return (line[2:] for line in split if line[:2] == ["python", "cli.py"] and not _is_open(line))


def _is_open(line: list[str]) -> bool:
    return any("…" in word or word in ("NAME", "CONFIG") for word in line)


def _files_exist(line: list[str]) -> None:
    for word in line:
        file = word.rpartition("=")[2].strip("[]")
        if file.startswith(("configs/", "models/", "slurm/")) and not _TEMPLATE.search(file):
            assert (ROOT / file).exists() or file in _OF_A_SITE, f"there is no {file}"


def _made(folder: Path, file: str) -> str:
    """The config that a run of the experiment after which its folder is named would keep."""
    if not file.startswith("runs/"):
        return str(ROOT / file)
    _, name, *_ = parts = Path(file).parts
    stage = Path(file).stem if "configs" in parts else parts[2]
    stages = steps_of(load_experiment(shipped(name)), folder / name)
    config = next(each.config for each in stages if each.name == stage)
    path = folder / f"{stage}.yaml"
    path.write_text(yaml.safe_dump(dict(config or {})), encoding="utf-8")
    return str(path)
