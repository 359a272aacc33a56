"""Every file, name and test that the pages on privacy point to is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import yaml
from readers import reader

from commands.run.experiment.experiment import load, shipped
from commands.run.steps.recipes import steps_of

ROOT = Path(__file__).parents[2]
PAGES = "".join((ROOT / "docs" / f"{name}.md").read_text("utf-8") for name in ("privacy", "claims", "sign-off"))


def names(file: Path) -> set[str]:
    """Functions and classes of a file, methods among them."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def test_every_place_that_the_pages_name_exists() -> None:
    places = re.findall(r"`([\w/]+\.py)(?:::?(\w+))?`", PAGES)
    assert len(places) > 60
    missing = [
        f"{path}:{name}"
        for path, name in places
        if not (ROOT / path).is_file() or (name and name not in names(ROOT / path))
    ]
    assert not missing


def test_every_claim_says_how_grave_it_is_where_it_is_made_and_what_attacks_it() -> None:
    claims = re.findall(r"^\| (\d+) \| (.+) \| (.+) \| (.+) \| (.+) \|$", PAGES, flags=re.M)
    assert [int(number) for number, *_ in claims] == list(range(1, len(claims) + 1)) and len(claims) > 50
    for number, _, severity, files, tests in claims:
        assert severity in ("critical", "record", "leak", "waste"), number
        assert all(re.fullmatch(r"`(?!tests/)[\w/]+\.py(:\w+)?`", file) for file in files.split(", ")), number
        assert all(re.fullmatch(r"`tests/[\w/]+\.py::test_\w+`", test) for test in tests.split(", ")), number
    assert {int(number) for number in re.findall(r"\(claim (\d+)\)", PAGES)} <= set(range(1, len(claims) + 1))


def test_the_map_of_the_package_names_every_file() -> None:
    package = ROOT / "doppel" / "privacy"
    described = (package / "__init__.py").read_text(encoding="utf-8")
    rooms = {path.stem for path in package.iterdir() if not path.name.startswith("_")}
    assert {room for room in rooms if f"`{room}`" not in described} == set()


def test_the_page_says_who_may_read_each_file_of_a_training(private_run: Path) -> None:
    assert {reader(str(path.relative_to(private_run))) for path in private_run.rglob("*") if path.is_file()} == {
        "who holds the run"
    }


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "configs" / "experiments").glob("*.yaml")))
@pytest.mark.parametrize("more", ["", "resampling: {of: trees}", "candidates: 2", "compare_with_private: true"])
def test_the_page_says_who_may_read_each_file_that_a_step_leaves(name: str, more: str) -> None:
    files = [
        file for step in steps_of(load(shipped(name), yaml.safe_load(more) or {}), Path("run")) for file in step.writes
    ]
    by_role = {(file.role, reader(file.path)) for file in files}
    assert by_role <= {
        ("release", "anybody"),
        ("private", "nobody outside"),
        *((role, "who holds the run") for role in ("checkpoint", "prompts", "pool", "candidates", "metrics", "data")),
        *((role, "nobody outside") for role in ("checkpoint", "metrics", "data")),
        ("metrics", "anybody"),
        ("report", "anybody"),
    }
    assert all(reader(file.path) == "who holds the run" for file in files if file.role == "checkpoint" and file.budget)


def test_the_page_says_who_may_read_each_file_of_an_evolution() -> None:
    files = [
        file
        for s in steps_of(load(shipped("quickstart"), {"systems": ["evolution"]}), Path("run"))
        for file in s.writes
    ]
    read = {file.path: reader(file.path) for file in files}
    assert read["evolution/samples.jsonl"] == "anybody"
    inside = {"evolution/answers.jsonl", "evolution/samples.jsonl.evolution.json"}
    assert {read[path] for path in inside} == {"who holds the run"} and None not in read.values()


@pytest.mark.parametrize("path", ["private.jsonl", "notes.txt", "evaluation/private.csv", "more/data/private.json"])
def test_what_is_not_of_the_run_is_nobodys(path: str) -> None:
    assert reader(path) is None
