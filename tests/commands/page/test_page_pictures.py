"""The page's pictures: what it has drawn it draws not again, and no picture enters that is not of the run's numbers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from markupsafe import Markup
from page_content import make_samples
from run_folders import edit_manifest

import cli
from commands.page import charts
from doppel.grammar import generate

ROOT = Path(__file__).parents[3]
HEAVY = {"matplotlib", "pandas", "lightning", "transformers"}  # Opacus, which checks ε, is made of PyTorch
MODULES = f"import sys, cli; status = cli.main(sys.argv[1:]); print(status, {HEAVY} & set(sys.modules))"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    lines = [{"utterance": t.utterance, "parse": t.parse} for t in generate(40, seed=6, skew=1.5)]
    run = make_samples(tmp_path / "run", lines, reference="embedded:test?num=30&seed=9&skew=1.5")
    assert cli.main(["page", str(run)]) == 0
    return run


@pytest.fixture
def drawn(run: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is drawn from now on, after the first page."""
    titles: list[str] = []
    for kind in ("scatter", "lengths"):
        draw = getattr(charts, kind)

        def noted(numbers: Any, title: str, told: str, draw: Any = draw) -> Markup:
            titles.append(title)
            return Markup(draw(numbers, title, told))

        monkeypatch.setattr(charts, kind, noted)
    return titles


def pictures(page: Path) -> list[str]:
    return re.findall(r"<svg .*?</svg>", page.read_text("utf-8"), flags=re.DOTALL)


def test_a_picture_of_the_same_numbers_is_the_page_s_own(run: Path, drawn: list[str], tmp_path: Path) -> None:
    before = (run / "report.html").read_bytes()
    assert cli.main(["page", str(run)]) == 0
    assert (run / "report.html").read_bytes() == before and len(pictures(run / "report.html")) == 2
    assert cli.main(["page", str(run), "--out", str(tmp_path / "other.html")]) == 0
    assert pictures(tmp_path / "other.html") == pictures(run / "report.html")
    assert drawn == []


def test_who_has_the_pictures_does_not_wait_for_matplotlib(run: Path) -> None:
    words = [sys.executable, "-c", MODULES, "page", str(run)]
    assert subprocess.run(words, cwd=ROOT, capture_output=True, text=True).stdout.endswith("\n0 set()\n")


def test_another_number_or_name_is_drawn_anew(run: Path, drawn: list[str]) -> None:
    before = pictures(run / "report.html")
    told = yaml.safe_load((run / "experiment.yaml").read_text())
    told["reference"] = "embedded:test?num=31&seed=9&skew=1.5"
    (run / "experiment.yaml").write_text(yaml.safe_dump(told))
    assert cli.main(["page", str(run)]) == 0
    after = pictures(run / "report.html")
    assert len(drawn) == 2 and not set(before) & set(after)

    assert cli.main(["page", str(run), "--names", "configs/names/smcalflow.yaml"]) == 0
    named = pictures(run / "report.html")  # of functions by other names; the lengths stay
    assert len(drawn) == 3 and named[0] != after[0] and named[1] == after[1]


def test_other_code_draws_anew(run: Path, drawn: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b"#" * (path.name == "charts.py"))
    assert cli.main(["page", str(run)]) == 0 and len(drawn) == 2


@pytest.mark.parametrize("way", ["changed", "not in the manifest", "there is none"])
def test_a_foreign_picture_is_not_shown(run: Path, drawn: list[str], way: str) -> None:
    page = run / "report.html"
    before = page.read_bytes()
    page.write_text(page.read_text("utf-8").replace("</svg>", "<text>foreign</text></svg>"), "utf-8")
    if way == "not in the manifest":
        edit_manifest(run, "report.html")
    elif way == "there is none":
        page.unlink()
    assert cli.main(["page", str(run)]) == 0
    assert page.read_bytes() == before and len(drawn) == 2
