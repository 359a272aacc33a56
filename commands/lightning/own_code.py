"""Models and data of one's own: found in the current folder, and their mistakes told by file and line."""

from __future__ import annotations

import difflib
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from doppel.console.say import say
from doppel.errors import UserError

_ROOT = Path(__file__).parents[2]
#: Packages of the project.
_ROOMS = ("doppel", "datamodules", "lightning_modules", "callbacks", "commands")


def find_here() -> None:
    """Put the current folder on the import path, of this process and of those that it starts.

    It comes last: a file there takes the place of nothing that is installed, nor of a module of this project, and one
    that is passed over so is told.
    """
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)
    known = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if here not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join([*known, here])
        for name in _ROOMS if Path(here) != _ROOT else ():
            if (Path(here) / f"{name}.py").is_file() or any((Path(here) / name).glob("*.py")):
                say(f"note: {name} of this folder is never imported, for the project has a {name} too: rename yours")


def check_own(argv: Sequence[str]) -> None:
    """Import the classes of the current folder that a command line names as its model and data.

    The parser says of a module that cannot be imported no more than that it is no LightningModule.

    Raises:
        UserError: One cannot be, or is no class for its place; by file and line.
    """
    for key, path in _class_paths(argv):
        module, _, name = path.rpartition(".")
        if Path(path).suffix in (".yaml", ".yml") or not all(part.isidentifier() for part in path.split(".")):
            continue
        top = module.split(".")[0]
        spec = find_spec(top)
        if spec is None:
            raise UserError(
                f"there is no {top}.py in {os.getcwd()}, and no package {top!r} is installed: call the command in the "
                "folder that holds it",
                about=f"--{key} {path}",
            )
        if any(_is_own(Path(place)) for place in [spec.origin or "", *(spec.submodule_search_locations or ())]):
            _check_class(key, _imported(module, f"--{key} {path}"), name)


def place(error: BaseException) -> str:
    """Return where an error of one's own code comes from, ``mine.py:12``; empty if none of it took part."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, SyntaxError) and cause.filename:
            return f"{_short(cause.filename)}:{cause.lineno}"
        own = [frame for frame in traceback.extract_tb(cause.__traceback__) if _is_own(Path(frame.filename))]
        if own:
            return f"{_short(own[-1].filename)}:{own[-1].lineno}"
        cause = cause.__cause__ or cause.__context__
    return ""


def _imported(module: str, asked: str) -> ModuleType:
    try:
        return import_module(module)
    except UserError as error:
        raise UserError(f"{asked} cannot be imported: {error}", about=place(error)) from error
    except Exception as error:  # whatever the user's module raises while it is imported
        what = error.msg if isinstance(error, SyntaxError) else error
        raise UserError(f"{asked} cannot be imported: {type(error).__name__}: {what}", about=place(error)) from error


def _check_class(key: str, module: ModuleType, name: str) -> None:
    from lightning.pytorch import LightningDataModule, LightningModule

    bases = {"model": LightningModule, "data": LightningDataModule}
    use = {
        "model": "derive it from LogicalBatchModule of lightning_modules.training.logical_batch_module",
        "data": "derive it from UnitDataModule of datamodules.unit_data_module, which takes a dataset",
    }
    file = _short(str(module.__file__))
    found: Any = getattr(module, name, None)
    if found is None:
        near = difflib.get_close_matches(name, vars(module), n=1)
        raise UserError(f"{file} has no {name!r}" + (f": did you mean {near[0]!r}?" if near else ""))
    if isinstance(found, type) and not issubclass(found, bases[key]):
        raise UserError(f"{name} is no {bases[key].__name__}: {use[key]} (docs/own-model.md)", about=file)


def _class_paths(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """``model`` or ``data`` and the class that is named for it, as words or in a ``--config``."""
    words = [part for word in argv for part in (word.split("=", 1) if word.startswith("--") else [word])]
    for option, value in zip(words, words[1:], strict=False):
        key = option.removeprefix("--").removesuffix(".class_path")
        if option in ("--config", "-c"):
            yield from _configured(Path(value))
        elif option.startswith("--") and key in ("model", "data") and "." in value:
            yield key, value


def _configured(path: Path) -> Iterator[tuple[str, str]]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return  # the parser says it
    for key in ("model", "data"):
        entry = content.get(key) if isinstance(content, dict) else None
        name = entry.get("class_path") if isinstance(entry, dict) else entry
        if isinstance(name, str) and "." in name:
            yield key, name


def _is_own(file: Path) -> bool:
    """Whether a file is the user's: neither of this project nor installed."""
    rooms = [_ROOT / name for name in (*_ROOMS, "cli.py")]
    installed = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return file.is_absolute() and not any(file.is_relative_to(place) for place in [*rooms, *installed])


def _short(path: str) -> str:
    return str(Path(path).relative_to(Path.cwd())) if Path(path).is_relative_to(Path.cwd()) else path
