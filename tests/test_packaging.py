"""What is imported is declared, and the wheel is the library alone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from source_modules import ROOMS, ROOT, imported, modules

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def distribution(requirement: str) -> str:
    """The normalised name of what a requirement, or a distribution's own name, installs."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=]", requirement)[0]).lower()


#: Package → the distributions that hold it, read once.
distributions = cache(packages_distributions)


def undeclared(room: str, declared: list[str]) -> set[str]:
    """Packages that the modules of a room, or of a part of one, import and no declared distribution holds."""
    known, installed = set(map(distribution, declared)), distributions()
    own = [module for module in modules() if module == room or module.startswith(f"{room}.")]
    assert own, room
    names = {name.split(".")[0] for module in own for name in imported(module)}
    others = names - sys.stdlib_module_names - set(ROOMS)
    return {name for name in others if not known & set(map(distribution, installed.get(name, [name])))}


CORE, EXTRAS = PROJECT["dependencies"], PROJECT["optional-dependencies"]
#: Parts of the library that need more than its dependencies → the extras that bring it.
PARTS = {
    "doppel.compressed": ("train",),  # pyarrow, for Zstandard: who lacks it is told
    "doppel.decoding": ("evolution", "train"),
    "doppel.metrics": ("metrics", "mauve"),
    "doppel.models": ("models", "encoders"),
    "doppel.privacy": ("opacus", "triton"),
    "doppel.text": ("text",),
    "doppel.evolution": ("evolution",),
    "doppel.redaction": ("metrics",),
}


@pytest.mark.parametrize("room", ROOMS[:-1])
def test_what_a_room_imports_is_declared(room: str) -> None:
    names = ("models", "metrics", "text", "evolution", "opacus", "train", "minilm", "encoders", "triton")
    extras = [requirement for name in names for requirement in EXTRAS[name]]
    assert undeclared(room, [*CORE, *extras]) == set()  # who lacks minilm or encoders is told


@pytest.mark.parametrize(
    "part", sorted({".".join(name.split(".")[:2]) for name in modules() if name.startswith("doppel.")})
)
def test_what_a_part_of_the_library_imports_is_declared_for_it(part: str) -> None:
    extras = [requirement for name in PARTS.get(part, ()) for requirement in EXTRAS[name]]
    assert undeclared(part, [*CORE, *extras]) == set()


def test_the_gpl_is_asked_for_by_name() -> None:
    """mauve-text is in one extra, which no other one pulls."""
    for name, requirements in {"": CORE, **EXTRAS}.items():
        assert name == "mauve" or not any("mauve" in requirement for requirement in requirements), name


def test_ranges_stand_in_pyproject_and_exact_versions_in_the_constraints_alone() -> None:
    assert not any("==" in requirement for requirements in [CORE, *EXTRAS.values()] for requirement in requirements)
    assert not re.search(r"==\s*\d", (ROOT / "Makefile").read_text(encoding="utf-8"))
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        assert re.fullmatch(r"[\w.-]+==[\w.+]+", line), line


LIGHT = """
import importlib.machinery, sys
REFUSED = set(sys.argv.pop(1).split())
find = importlib.machinery.PathFinder.find_spec
def found(name, *args):
    return None if name.split(".")[0] in REFUSED else find(name, *args)
importlib.machinery.PathFinder.find_spec = found
for name in sys.argv.pop(1).split():
    importlib.import_module(name)
import torch
from doppel.console.main import main
from doppel.privacy.accounting import Mechanism, cross_check
from doppel.privacy.clipping import PerSampleClipper
from doppel.privacy.ledger import Ledger
model = torch.nn.Linear(3, 2)
clipper = PerSampleClipper(model, max_grad_norm=1.0)
assert cross_check([Mechanism(0.1, 1.0, 30)], 1e-5)[1] is None
assert not Ledger("ledger.jsonl").exists()
raise SystemExit(main(["plan", "--num-units=1000", "--batch-size=50", "--epochs=1", "--target-epsilon=8"]))
"""


@pytest.mark.slow
def test_clipping_accounting_noise_ledger_and_the_command_need_no_extra(tmp_path: Path) -> None:
    core = set(map(distribution, CORE))
    extras = {distribution(line) for lines in EXTRAS.values() for line in lines} - core - {"setuptools", "doppel"}
    refused = {name for name, holders in packages_distributions().items() if extras & set(map(distribution, holders))}
    refused -= {"jinja2", "markupsafe"}  # torch's own
    assert {"opacus", "transformers", "torchmetrics", "sklearn", "lightning", "pandas", "matplotlib"} <= refused
    light = [name for name in modules() if name.startswith(("doppel.privacy", "doppel.console", "doppel.lispress"))]
    light.remove("doppel.privacy.noise_kernel")  # for whoever has Triton
    command = [sys.executable, "-c", LIGHT, " ".join(sorted(refused)), " ".join(light)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert "noise multiplier sigma" in done.stdout


def test_an_import_that_is_not_declared_is_found() -> None:
    assert "torch" in undeclared("doppel", ["numpy"])


def test_every_declared_distribution_has_an_exact_version() -> None:
    exact = {distribution(line) for line in (ROOT / "constraints.txt").read_text().splitlines()}
    extras = [requirement for extra in PROJECT["optional-dependencies"].values() for requirement in extra]
    assert {distribution(requirement) for requirement in [*PROJECT["dependencies"], *extras]} - {"doppel"} <= exact


def made(path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`make --dry-run quickstart` in a new environment, where only the programs of a folder are found."""
    command = [shutil.which("make") or "make", "--dry-run", "quickstart", f"VENV={path / 'venv'}", *words]
    return subprocess.run(command, cwd=ROOT, env={"PATH": str(path)}, capture_output=True, text=True)


def program(path: Path, version: str) -> Path:
    """This Python under another version's name, and as that version; without one, a program that fails."""
    pretend = f"import sys; sys.version_info = ({version.replace('.', ', ')}, 0, 'final', 0); exec(sys.argv[1])"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{pretend}" "$2"\n' if version else "#!/bin/sh\nexit 127\n")
    path.chmod(0o755)
    return path


def test_make_takes_the_newest_python_that_runs(tmp_path: Path) -> None:
    for version in ("3.10", "3.11", "3.12", "3.13", "3.14"):
        program(tmp_path / f"python{version}", version)
    venv = r'echo "installing .*\n"python{}" -m venv .*lib/python{} .*\n'
    assert re.match(venv.format("3.13", "3.13"), made(tmp_path).stdout)
    program(tmp_path / "python3.13", "")
    assert re.match(venv.format("3.12", "3.12"), made(tmp_path).stdout)
    assert re.match(venv.format("3.11", "3.11"), made(tmp_path, "PYTHON=python3.11").stdout)
    (tmp_path / "python3.12").unlink()
    assert re.match(venv.format("3.11", "3.11"), made(tmp_path).stdout)


@pytest.mark.parametrize("version", ["", "3.10", "3.14", "there is none"])
def test_make_says_in_one_line_what_to_install(version: str, tmp_path: Path) -> None:
    named = [] if version == "there is none" else [f"PYTHON={program(tmp_path / 'mine', version)}"]
    done = made(tmp_path, *named)
    assert done.returncode and not done.stdout and all(word in done.stderr for word in named)
    assert re.fullmatch(r".*no Python 3\.11, 3\.12 or 3\.13 .* install python3-venv.* PYTHON=.*\n", done.stderr)


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
        str(path.relative_to(ROOT))
        for path in (ROOT / "doppel").rglob("*")
        if path.suffix in (".py", ".txt", ".yaml", ".csv", ".gz")
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
    assert "--num-parameters" in plan.stdout and "noise-to-signal" not in plan.stdout  # there is no models/base
    for word in ("fit", "run"):
        refused = doppel(word)
        assert refused.returncode == 2 and f"python cli.py {word}" in refused.stderr
