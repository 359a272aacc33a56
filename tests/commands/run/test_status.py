"""Where a run stands, and its end: by marks, the queue, and what steps have said."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import cli
from commands.run.experiment.experiment import load, save, shipped
from commands.run_folder.manifest_writer import lay_out

QUEUE = """\
12|RUNNING|2|None|
13_4|PENDING|0|Dependency|
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of one system, of which a training is in the queue; programs stand in for SLURM's."""
    run, tools = tmp_path / "grid" / "seed=1", tmp_path / "bin"
    for folder in (run / ".done", run / "slurm", run.parent / "slurm", tools):
        folder.mkdir(parents=True)
    save(load(shipped("quickstart"), {"systems": ["one_stage"], "words": None}), run / "experiment.yaml")
    lay_out(run)
    (run / "slurm" / "one_stage-one_stage.job").write_text("12\n")
    (run / "slurm" / "one_stage-sample_one_stage.job").write_text("13_4\n")
    (tools / "queue").write_text(QUEUE)
    for name, text in {"squeue": f"cat {tools}/queue", "scancel": f'echo "$@" > {tools}/cancelled'}.items():
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    return run


def told(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> list[str]:
    capsys.readouterr()
    assert cli.main(words) == status
    return capsys.readouterr().out.splitlines()


def test_each_step_is_told_by_its_mark_its_job_or_its_error(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "status", str(run.parent)) == [
        f"{run}: nothing was spent",
        "  one_stage-one_stage: job 12 is RUNNING, requeued 2 times",
        "  one_stage-sample_one_stage: job 13_4 is PENDING (Dependency)",
        "  one_stage-evaluate: waits",
        "  report: waits",
    ]
    (run.parents[1] / "bin" / "queue").write_text("")
    (run / ".done" / "one_stage-one_stage").write_text("61\n")
    (run.parent / "slurm" / "one_stage-sample_one_stage-13_4.out").write_text("error: no\nerror: full disk\nbye\n")
    lines = told(capsys, "status", str(run), status=1)
    assert lines[1:3] == [
        "  one_stage-one_stage: done in 61 s",
        "  one_stage-sample_one_stage: job 13_4 failed: error: full disk",
    ]


def test_what_runs_here_is_known_by_its_lock_and_its_log(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from commands.run_folder.ownership import hold

    (run.parents[1] / "bin" / "queue").write_text("")
    began, ended = "── one_stage-one_stage (1 of 4): training\n", "error: one_stage was killed, see above; …\n"
    (run / "run.log").write_text(f"── public (1 of 4): training\nerror: of another step\n{began}")
    with hold(run):
        assert "  one_stage-one_stage: runs on this machine" in told(capsys, "status", str(run))
    assert "  one_stage-one_stage: job 12 has left the queue" in told(capsys, "status", str(run))
    for said, line in {ended: ended, f"error: full disk\n{ended}": "error: full disk\n"}.items():
        (run / "run.log").write_text(f"error: of before\n{began}{said}")
        assert f"  one_stage-one_stage: failed: {line}" in "\n".join(told(capsys, "status", str(run), status=1)) + "\n"


def test_a_task_of_a_grid_is_not_told_the_error_of_another(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run.parents[1] / "bin" / "queue").write_text("")
    (run / "slurm" / "one_stage-sample_one_stage.job").write_text("13_1\n")
    (run.parent / "slurm" / "one_stage-sample_one_stage-13_10.out").write_text("error: of task 10\n")
    assert "  one_stage-sample_one_stage: job 13_1 has left the queue" in told(capsys, "status", str(run))
    (run.parent / "slurm" / "one_stage-sample_one_stage-13_1_0.out").write_text("error: of its process\n")
    assert "  one_stage-sample_one_stage: job 13_1 failed: error: of its process" in told(
        capsys, "status", str(run), status=1
    )


def test_jobs_of_a_run_are_cancelled_and_no_others(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sorted(told(capsys, "cancel", str(run))) == [
        "cancelled seed=1 one_stage-one_stage: job 12",
        "cancelled seed=1 one_stage-sample_one_stage: job 13_4",
    ]
    assert set((run.parents[1] / "bin" / "cancelled").read_text().split()) == {"12", "13_4"}
    (run.parents[1] / "bin" / "queue").write_text("")
    assert told(capsys, "cancel", str(run)) == ["no job of it is in the queue"]
    assert told(capsys, "cancel", str(run.parents[1] / "bin"), status=2) == []
