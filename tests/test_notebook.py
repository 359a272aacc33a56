"""`run` from Python, as the notebook of the docs calls it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from source_modules import ROOT

from commands.run import run
from commands.run.experiment.experiment import read_values
from doppel.errors import UserError
from doppel.privacy.ledger import Ledger

NOTEBOOK = json.loads((ROOT / "docs" / "first_run.ipynb").read_text(encoding="utf-8"))
CELLS = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
#: A script that is no module to import: what it forks must not run it again.
SCRIPT = """
import json, sys
cells, changes = json.loads(sys.argv[1]), json.loads(sys.argv[2])
space = {}
for place, cell in enumerate(cells):
    exec(cell, space)
    if place == 0:
        space["settings"] = {**space["settings"], **changes}
        space["frame"] = space["frame"].head(60)
first = space["first"]
print(json.dumps([len(first.samples), sorted(first.samples), first.epsilon, first.metrics, str(first.page)]))
"""


@pytest.mark.slow
def test_the_notebook_runs_and_its_record_is_that_of_the_run_folder(tmp_path: Path, tiny_model: str) -> None:
    """In a script of its own, at the size of the tests."""
    tiny = {"data.unit": "user", "data.columns.unit": "user", "data.batch_size": 10, "epochs.one_stage": 1}
    tiny |= {"model.base_model": tiny_model, "sampling.max_new_tokens": 6, "sampling.redraws": None}
    tiny |= {"trainer.accelerator": "cpu", "trainer.logger": False, "privacy.accountant": "rdp"}
    changes = {"num_samples": 9, "set": tiny}
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    words = [sys.executable, "script.py", json.dumps(CELLS), json.dumps(changes)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("one_stage (1 of") == 1
    num, columns, epsilon, metrics, page = json.loads(done.stdout.splitlines()[-1])
    folder = tmp_path / "runs" / "first"
    assert (num, columns, page) == (9, ["system", "utterance"], str(folder / "report.html"))
    assert epsilon == pytest.approx(Ledger(folder / "ledger.jsonl").summary()["target_epsilon"])
    assert metrics["one_stage"]["num_compared"] == 9
    log = (folder / "run.log").read_text()
    assert (
        "one_stage (1 of" in log
        and "6/6 steps · ε" in log
        and "6/6 steps · ε" in done.stderr
        and "── warning" in done.stdout
    )
    assert "[transformers]" not in log and "Loading weights" not in log and folder.stat().st_mode & 0o777 == 0o700
    assert "── warning" not in log and "private/" not in log


def test_any_character_of_a_value_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON writes those above U+FFFF as two halves, which YAML refuses, and YAML folds some ends of lines."""
    given, heard = {"label_words": {"glad 😀": 'a\x7fb\u2028c\x85d\n"\\ud83d'}}, []
    monkeypatch.setattr("commands.run.launch.run", lambda *_, set, **__: heard.extend(set) or 1)
    with pytest.raises(UserError, match="ended with status 1"):
        run("any.yaml", tmp_path / "run", **given)
    assert read_values(heard) == given


def test_a_setting_that_does_not_exist_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="num_sample"):
        run(ROOT / "configs/experiments/quickstart.yaml", tmp_path / "run", num_sample=3)
    assert not (tmp_path / "run").exists()


def test_the_notebook_shows_what_its_cells_gave() -> None:
    code = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] for cell in code[1:]) and [cell["execution_count"] for cell in code] == [*range(1, 7)]
    assert len(json.dumps(NOTEBOOK)) < 8000 and str(ROOT) not in json.dumps(NOTEBOOK)
