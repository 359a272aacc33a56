"""What is imported is declared, and the wheel is the library alone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from source_modules import ROOMS, ROOT, imported, modules

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def distribution(requirement: str) -> str:
    """The normalised name of what a requirement, or a distribution's own name, installs."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=]", requirement)[0]).lower()


def undeclared(room: str, declared: list[str]) -> set[str]:
    """Packages that the modules of a room import and no declared distribution holds."""
    known, installed = set(map(distribution, declared)), packages_distributions()
    names = {name.split(".")[0] for module in modules() if module.split(".")[0] == room for name in imported(module)}
    others = names - sys.stdlib_module_names - set(ROOMS)
    return {name for name in others if not known & set(map(distribution, installed.get(name, [name])))}


@pytest.mark.parametrize("room", ROOMS)
def test_what_a_room_imports_is_declared(room: str) -> None:
    extras = PROJECT["optional-dependencies"]
    more = [] if room == "doppel" else [*extras["train"], *extras["minilm"]]  # who lacks the latter is told
    assert undeclared(room, [*PROJECT["dependencies"], *more]) == set()


def test_an_import_that_is_not_declared_is_found() -> None:
    assert "torch" in undeclared("doppel", ["numpy"])


def test_every_declared_distribution_has_an_exact_version() -> None:
    exact = {distribution(line) for line in (ROOT / "constraints.txt").read_text().splitlines()}
    extras = [requirement for extra in PROJECT["optional-dependencies"].values() for requirement in extra]
    assert {distribution(requirement) for requirement in [*PROJECT["dependencies"], *extras]} <= exact


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the tree without any network."""
    pytest.importorskip("setuptools", minversion="77")
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    for name in (*ROOMS[1:], "models"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "*.safetensors"))
    for name in ("cli.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    program = f"from setuptools import build_meta; build_meta.build_wheel({str(out)!r})"
    subprocess.run([sys.executable, "-c", program], cwd=tree, check=True, capture_output=True)
    (built,) = out.glob("*.whl")
    return built


def test_the_wheel_is_the_library_alone(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    files = {name for name in names if not name.split("/")[0].endswith(".dist-info")}
    assert {name.split("/")[0] for name in files} == {"doppel"}
    sources = {
        str(path.relative_to(ROOT)) for path in (ROOT / "doppel").rglob("*") if path.suffix in (".py", ".txt", ".yaml")
    }
    assert files == sources


def test_the_installed_library_plans_and_says_where_training_runs(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    (entry_points,) = (tmp_path / "site").glob("*.dist-info/entry_points.txt")
    assert "doppel = doppel.console.main:main" in entry_points.read_text()

    def doppel(*words: str) -> subprocess.CompletedProcess[str]:
        program = "import sys; from doppel.console.main import main; sys.exit(main())"
        environment = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
        command = [sys.executable, "-P", "-c", program, *words]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)

    plan = doppel("plan", "--num-units=1000", "--batch-size=50", "--epochs=1", "--target-epsilon=8")
    assert plan.returncode == 0 and "noise multiplier sigma" in plan.stdout
    for word in ("fit", "run"):
        refused = doppel(word)
        assert refused.returncode == 2 and f"python cli.py {word}" in refused.stderr
