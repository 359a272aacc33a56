"""The page's pictures: the same numbers give the same ones, and other numbers others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from page_content import make_samples

import cli
from doppel.grammar import generate


@pytest.fixture
def run(tmp_path: Path) -> Path:
    lines = [{"utterance": t.utterance, "parse": t.parse} for t in generate(40, seed=6, skew=1.5)]
    return make_samples(tmp_path / "run", lines, reference="embedded:test?num=30&seed=9&skew=1.5")


def pictures(run: Path, *words: str) -> list[str]:
    """Those of a page that is written now."""
    assert cli.main(["report", str(run), *words]) == 0
    return re.findall(r"<svg .*?</svg>", (run / "report.html").read_text("utf-8"), flags=re.DOTALL)


def test_the_same_numbers_give_the_same_page_and_others_other_pictures(run: Path) -> None:
    before = pictures(run)
    page = run / "report.html"
    content = page.read_bytes()
    page.write_text(page.read_text("utf-8").replace("</svg>", "<text>foreign</text></svg>"), "utf-8")
    assert pictures(run) == before and len(before) == 2
    assert page.read_bytes() == content

    experiment = yaml.safe_load((run / "experiment.yaml").read_text())
    experiment["reference"] = "embedded:test?num=31&seed=9&skew=1.5"
    (run / "experiment.yaml").write_text(yaml.safe_dump(experiment))
    after = pictures(run)
    assert not set(before) & set(after)
    (run.parent / "names.yaml").write_text("Yield: answer\n")
    named = pictures(run, "--names", str(run.parent / "names.yaml"))  # of functions by other names; the lengths stay
    assert named[0] != after[0] and named[1] == after[1]
