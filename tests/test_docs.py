"""The pages: links, files and fields that they name exist, their commands parse and their programs compile."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import io
import re
import sys
import typing
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightning.pytorch import Trainer
from markdown_blocks import ROOT, anchors, blocks, code, commands, links, words

import cli
from callbacks.differential_privacy import DifferentialPrivacy
from commands.lightning import train
from commands.run import launch
from commands.run.experiment.experiment import load as load_experiment
from commands.run.experiment.experiment import shipped
from commands.run.experiment.settings import SECTIONS, Experiment
from commands.run.steps.recipes import steps_of
from datamodules.dialogue_data_module import DialogueDataModule
from datamodules.parser_data_module import ParserDataModule
from docs import reference
from doppel.console.command import command_parser, reads_words
from doppel.console.dispatch import load
from lightning_modules.causal_lm import CausalLM
from lightning_modules.semantic_parser import SemanticParser

PAGES = sorted(
    page
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "notes/*.md",
        "slurm/*.md",
        "configs/**/*.md",
        "models/**/*.md",
        "studies/**/*.md",
    )
    for page in ROOT.glob(pattern)
)
COMMENTED = sorted(file for file in (ROOT / "configs").rglob("*.yaml") if "python cli.py" in file.read_text("utf-8"))
ROOMS = (
    "benchmarks|callbacks|commands|configs|datamodules|docs|doppel|lightning_modules|models|notes|slurm|studies|tests"
)
TARGETS = {name: target for group in (cli.COMMANDS | cli.MORE).values() for name, target in group.items()}
TARGETS |= {f"step {name}": target for name, target in cli.STEPS.items()}
EXAMPLE = "\nexample:\n"
TRAINERS = ("fit", "validate", "test", "predict", "audit")
_TEMPLATE = re.compile(r"[A-Z]{3,}|[…*{<$]")  # RUN/…, NAME, {a,b}
_OF_A_SITE = {"slurm/site.yaml", "models/smollm2-135m", "models/smollm2-135m-requests"}  # that git ignores


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


def test_named_fields_exist(page: Path) -> None:
    """In backticks, in YAML and behind ``--set`` and ``--grid``; the log tells of fields that are gone."""
    if page.name == "log.md":
        return
    named = [match[0] for span in code(page) if (match := re.match(r"\w+(\.\w+)+(?=[=:]|$)", span))]
    sections = (*SECTIONS, "stages", "epochs", "topics", "adaptation", "resampling")
    named = [name for name in named if name.partition(".")[0] in sections]
    for block in blocks(page):
        content = yaml.safe_load(block.text) if block.language == "yaml" else {}
        named += [] if "program" in content else _dotted(content)  # a sweep of W&B is no experiment
    for line in _commands(page):
        if line[0] in ("run", "norms"):
            named += [word.partition("=")[0] for word in _behind(("--set", "--grid"), line)]
    assert [name for name in named if not _is_field(name.split("."))] == []


def test_programs_compile(page: Path) -> None:
    for block in blocks(page):
        if block.language == "python":
            compile(block.text, f"{page}:{block.line}", "exec")


def test_commands_parse(text: Path) -> None:
    for name, *rest in _commands(text):
        if name in (*TRAINERS, "--help"):  # which read their words themselves
            continue
        if name == "step":
            name, *rest = f"step {rest[0]}", *rest[1:]
        assert name in TARGETS, f"there is no command {name}"
        _files_exist(rest)
        if "--help" not in rest:
            given = command_parser(load(TARGETS[name]), f"cli.py {name}").parse_args(rest)
            if name == "run":
                load_experiment(ROOT / given.experiment, launch.read_values(given.set))


def test_tasks_of_studies_are_there(page: Path) -> None:
    for line in map(words, commands(page)):
        if line[:2] == ["python", "-m"] and line[2].startswith("studies."):
            tasks = importlib.import_module(f"{line[2]}.__main__").TASKS
            targets = {name: target for group in tasks.values() for name, target in group.items()}
            assert line[3] in targets, f"{line[2]} has no task {line[3]}"
            function = load(targets[line[3]])
            if not reads_words(function):
                command_parser(function, line[2]).parse_args(line[4:])


def test_trainings_parse(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if text.name == "own-model.md":  # its commands name a file of the reader's
        (tmp_path / "mine.py").write_text(next(b.text for b in blocks(text) if b.language == "python"))
        monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    for name, *rest in _commands(text):
        if name in TRAINERS:
            _files_exist(rest)
            rest = [_made(tmp_path, word) if n and rest[n - 1] == "--config" else word for n, word in enumerate(rest)]
            with contextlib.redirect_stdout(io.StringIO()), pytest.raises(SystemExit) as end:
                getattr(train, name.replace("audit", "fit"))([*rest, "--print_config"])
            assert not end.value.code


@pytest.mark.parametrize("name", [name for name in TARGETS if not name.startswith("step ")])
def test_help_has_an_example_that_parses_and_defaults_that_people_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main([name, "--help"])
    told = capsys.readouterr().out
    assert not re.search(r"type: |default: (null|None|\[\])|null\}|<class|Namespace|:\w+:`", told)
    page = tmp_path / "help.md"
    page.write_text(f"```bash\n{told.rpartition(EXAMPLE)[2]}```\n")
    assert {line[0] for line in _commands(page)} == {name}
    test_commands_parse(page)
    test_trainings_parse(page, tmp_path, monkeypatch)


def test_the_reference_is_what_the_classes_say() -> None:
    assert reference.PAGE.read_text(encoding="utf-8") == reference.written(), "run `python -m docs.reference`"


def _behind(options: tuple[str, ...], line: list[str]) -> Iterator[str]:
    """Words that belong to one of these options."""
    option = ""
    for word in line:
        if word.startswith("--"):
            option = word
        elif option in options:
            yield word


def _dotted(content: Mapping[str, Any], before: str = "") -> list[str]:
    names = []
    for key, value in content.items():
        is_open = isinstance(value, Mapping) and (before + key).partition(".")[0] in (*SECTIONS, "stages", "variants")
        names += _dotted(value, f"{before}{key}.") if is_open else [before + key]
    return names


def _is_field(words: list[str]) -> bool:
    """Whether an experiment has the field that these words name."""
    fields = {field.name for field in dataclasses.fields(Experiment)} | {"base"}
    name, *rest = words
    if name == "stages" and rest:
        name, rest = (rest[1], rest[2:]) if len(rest) > 1 else (name, [])
    if name not in fields or not rest:
        return name in fields or name.isupper()
    if name in SECTIONS:
        return rest[0] in _keys()[name] or rest[0] == "init_args"
    kinds = [
        kind for kind in typing.get_args(typing.get_type_hints(Experiment)[name]) if dataclasses.is_dataclass(kind)
    ]
    return not kinds or rest[0] in {field.name for field in dataclasses.fields(kinds[0])}


@cache
def _keys() -> dict[str, set[str]]:
    """Section of an experiment → its keys: the arguments of what it sets up."""

    def arguments(*functions: Any) -> set[str]:
        return {name for function in functions for name in inspect.signature(function).parameters}

    def dataclass_of(function: Any) -> Iterable[str]:
        hints = typing.get_type_hints(function.__init__)
        return {f.name for kind in hints.values() if dataclasses.is_dataclass(kind) for f in dataclasses.fields(kind)}

    return {
        "trainer": arguments(Trainer),
        "model": arguments(CausalLM, SemanticParser),
        "sampling": {*dataclass_of(CausalLM)},
        "data": arguments(DialogueDataModule, ParserDataModule),
        "privacy": {*dataclass_of(DifferentialPrivacy)},
    }


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
    stage = Path(file).stem if "configs" in parts else "-".join(parts[2:-1])
    stages = steps_of(load_experiment(shipped(name)), folder / name)
    config = next(each.config for each in stages if each.name == stage)
    path = folder / f"{stage}.yaml"
    path.write_text(yaml.safe_dump(dict(config or {})), encoding="utf-8")
    return str(path)
