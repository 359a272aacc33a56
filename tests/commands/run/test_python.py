"""Runs from Python: rows in place of a file, and a finished run that is opened again."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from unittest import mock

import pandas as pd
import pytest
from readers import reader
from source_modules import ROOT

import cli
from commands import run as python
from commands.run import launch
from commands.run.experiment.experiment import load, shipped
from commands.run_folder.manifest import Manifest
from commands.run_folder.private_files import of_runs
from doppel.console.say import say
from doppel.errors import UserError

ROWS = [{"said": f"lunch with Ana {i}", "who": i // 2} for i in range(20)]
OWN = {"data.unit": "user", "data.columns": {"text": "said", "unit": "who"}}


def begin(folder: Path, data: object = None, **changes: object) -> launch.RunPlan:
    """What a call of `run` would do, all but doing it."""
    begun: list[launch.RunPlan] = []

    def execute(plan: launch.RunPlan, *_: object) -> int:
        launch.write(plan, overwrite=True)
        begun.append(plan)
        return 0

    patched = {"execute": execute, "preflight": mock.Mock()}
    with mock.patch.multiple(launch, **patched), mock.patch.object(python, "open_run"):
        python.run("configs/experiments/quickstart.yaml", folder, data=data, reference=None, set=OWN, **changes)  # type: ignore[arg-type]
    return begun[0]


def test_rows_are_a_private_file_of_the_run_which_the_same_rows_resume(tmp_path: Path) -> None:
    run = tmp_path / "run"
    begin(run, ROWS[:9])
    plan = begin(run, ROWS)  # nothing has been paid: the other rows bind nobody
    file = run / "data" / "private_rows.jsonl"
    assert [json.loads(line) for line in file.read_text().splitlines()] == ROWS
    assert file.stat().st_mode & 0o777 == 0o600 and reader("data/private_rows.jsonl") == "nobody outside"
    assert Manifest.read(run).files["data/private_rows.jsonl"].is_private and str(file) in [
        path for path, _ in of_runs(run)
    ]
    training = next(step for step in plan.steps if step.kind == "fit")
    assert training.protected == ("data/private_rows.jsonl",) and training.config["data"]["init_args"]["unit"] == "user"
    (run / ".done").mkdir()
    (run / ".done" / training.name).touch()
    file.unlink()
    begin(run, pd.DataFrame(ROWS))
    assert file.is_file(), "whoever deletes his rows gives them again"
    for others in (ROWS[:9], pd.DataFrame(ROWS).assign(who=1)):
        with pytest.raises(UserError, match="was started with other rows"):
            begin(run, others)
    with pytest.raises(UserError, match="was started with data.train_path="):
        begin(run)
    assert [json.loads(line) for line in file.read_text().splitlines()] == ROWS


def test_rows_in_the_place_of_the_file_of_a_run_are_refused_and_not_written(tmp_path: Path) -> None:
    run = tmp_path / "run"
    begin(run)
    (run / ".done").mkdir()
    (run / ".done" / "one_stage-one_stage").touch()
    with pytest.raises(UserError, match="was started with other rows"):
        begin(run, ROWS)
    assert not (run / "data").exists()


def test_data_is_a_section_too_and_values_may_have_any_character(tmp_path: Path) -> None:
    plan = begin(tmp_path / "run", {"batch_size": 7}, names={"Talk": "chat 😀"})
    assert plan.experiment.data["batch_size"] == 7 and plan.experiment.names == {"Talk": "chat 😀"}
    assert load(tmp_path / "run" / "experiment.yaml").names == {"Talk": "chat 😀"}
    with pytest.raises(UserError, match="give one of them"):
        begin(tmp_path / "other", ROWS, **{"data.train_path": "mine.csv"})
    with pytest.raises(UserError, match="give keys with values"):
        begin(tmp_path / "other", "mine.csv")


def test_what_reading_the_private_file_told_is_said_and_not_written_down(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def read(*_: object) -> None:
        say("row 7 has no text")

    def steps(*_: object) -> int:
        say("a step has said this")
        return 75

    for _ in range(2):  # the second time it resumes
        with mock.patch.multiple(launch, preflight=read, run_here=steps):
            assert launch.run(shipped("quickstart"), tmp_path / "run", local=True) == 75
    log = tmp_path / "run" / "run.log"
    assert log.read_text().splitlines()[1::2] == ["a step has said this"] * 2 and "row 7" in capsys.readouterr().out
    assert log.stat().st_mode & 0o777 == 0o600 and reader("run.log") == "who holds the run"


def test_a_finished_run_is_opened_without_its_experiment(run: Path) -> None:
    with pytest.raises(UserError, match=r"has no report\.json"):
        python.open_run(run)
    assert cli.main(["report", str(run)]) == 0
    (run / "experiment.yaml").unlink()
    found: list[python.RunResult] = []
    thread = threading.Thread(target=lambda: found.append(python.open_run(str(run))))
    thread.start()
    thread.join()
    (mine,) = found
    assert mine.folder == run and mine.page.is_file() and mine.report == json.loads((run / "report.json").read_text())
    assert mine.samples["system"].value_counts().to_dict() == dict.fromkeys(
        ("one_stage", "labels", "topics", "two_stage"), 12
    )
    assert set(mine.samples) == {"system", "utterance", "parse", "label"}
    assert mine.card is not None and mine.card["verified"] and mine.epsilon and mine.epsilon > 8
    code = "import sys; from commands.run import open_run; open_run(sys.argv[1]); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, str(run)], cwd=ROOT, check=False)
    assert done.returncode == 0, "who reads a run waits for what trains"
    samples = run / "one_stage" / "samples.jsonl"
    with samples.open("a") as file:  # by hand: what no ε covers
        file.write(json.dumps({"utterance": "my own"}) + "\n")
    with pytest.raises(UserError, match=r"one_stage/samples\.jsonl was changed after .*nothing is read from it"):
        python.open_run(run)
