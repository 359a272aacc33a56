"""The README's commands run: as they stand where that is cheap, as a rehearsal where it is not."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest
from markdown_blocks import ROOT, blocks, commands, words

import cli
from commands.pipeline.experiment import load
from commands.pipeline.run import read_values
from commands.pipeline.sources import read_sources
from datamodules.columns import Columns
from doppel.grammar import generate

README = ROOT / "README.md"
LINES = [words(line) for line in commands(README)]


def test_it_can_be_read_to_the_end() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150


def test_make_knows_its_targets() -> None:
    targets = [line[1:] for line in LINES if line[0] == "make"]
    assert targets
    for target in targets:
        subprocess.run(["make", "--dry-run", *target], cwd=ROOT, check=True, capture_output=True)


def test_files_that_are_copied_exist() -> None:
    for line in LINES:
        if line[0] == "cp":
            assert (ROOT / line[1]).is_file(), line[1]


def test_the_line_of_data_is_one_that_can_be_read() -> None:
    (example,) = [block.text for block in blocks(README) if block.language == "json"]
    assert json.loads(example).keys() == {"text", "parse", "label", "unit"} == {*asdict(Columns())}


@pytest.mark.parametrize(
    "line", [line for line in LINES if line[:3] == ["python", "cli.py", "run"]], ids=lambda line: Path(line[3]).stem
)
def test_runs_are_rehearsed(
    line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every `run`, from a folder that holds the files it names; what submits is told to print instead."""
    texts = [turn.utterance for turn in generate(600, seed=1)]
    (tmp_path / "private.csv").write_text("review\n" + "".join(f'"{text}"\n' for text in texts[:500]), encoding="utf-8")
    (tmp_path / "public.txt").write_text("\n".join(texts[500:]), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    if "data.train_path=private.csv" in line:
        start = line.index("--set") + 1
        changes = read_values(line[start:]) | {"systems": ["one_stage"]}
        assert read_sources(load(ROOT / line[3], changes)) == []
    monkeypatch.delenv("DOPPEL_DATA", raising=False)
    words = [str(ROOT / word) if word.startswith("configs/") else word for word in line[2:] if word != "--submit"]
    status = cli.main([*words, *([] if "--dry-run" in words else ["--dry-run"])])
    captured = capsys.readouterr()
    assert status == 0, captured.err
    assert "JOB_report" in captured.out
    assert not (tmp_path / "runs").exists()


def test_the_plan_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = [line for line in LINES if line[2:3] == ["plan"]]
    assert cli.main(line[2:]) == 0
    rows = dict(row.split("  ", 1) for row in capsys.readouterr().out.splitlines())
    assert 7.9 < float(rows["epsilon by pld"].split()[0]) <= 8
