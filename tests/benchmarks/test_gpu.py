"""What is prepared for a GPU: the project takes every setting, and a run that is cut short keeps what is done."""

from __future__ import annotations

import csv
import gzip
import json
import os
import sys
import tarfile
from pathlib import Path

import pytest

from benchmarks.gpu import parts, scores
from benchmarks.gpu.jobs import Job, Place, jobs
from benchmarks.gpu.synthesize import makes_samples
from commands.run.experiment.experiment import load, read_values
from commands.run.steps.recipes import steps_of

ROOT = Path(__file__).resolve().parents[2]


def place(tmp_path: Path, is_rehearsal: bool = False) -> Place:
    data = Path(os.environ.get("DOPPEL_DATA", "data")).resolve()
    return Place(tmp_path / "work", tmp_path / "out", data, "cpu", is_rehearsal)


@pytest.mark.parametrize("is_rehearsal", [True, False])
def test_every_sampling_is_an_experiment_whose_steps_end_with_samples(tmp_path: Path, is_rehearsal: bool) -> None:
    made = [job for job in jobs(place(tmp_path, is_rehearsal)) if job.part == "c"]
    assert len({job.name for job in made}) == len(made) and all(job.goes_on for job in made)
    for job in made:
        settings = list(job.command[job.command.index("--set") + 1 :])
        system = job.command[job.command.index("--system") + 1]
        experiment = load(ROOT / job.command[3], read_values(settings) | {"systems": [system]})
        steps = [step for step in steps_of(experiment, tmp_path / job.name) if makes_samples(step)]
        assert steps[-1].kind == "predict" and {step.kind for step in steps} >= {"fit", "predict"}
        assert ("public" in [step.name for step in steps]) == job.name.startswith("taught")


def test_what_is_measured_fits_into_a_call_and_comes_first(tmp_path: Path) -> None:
    made = jobs(place(tmp_path))
    assert [job.part for job in made] == sorted(job.part for job in made)
    assert all(job.minutes <= 3 for job in made if not job.goes_on)


_SAVES = """
import signal, sys, time
def save(*_): (f / "half.jsonl").write_text("half"); sys.exit(75)
signal.signal(signal.SIGTERM, save)
if (f / "half.jsonl").exists(): (f / "samples.jsonl").write_text("whole"); sys.exit()
time.sleep(60)
"""


@pytest.mark.slow
def test_calls_go_on_where_the_last_one_has_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "GRACE", 2.0)
    where = place(tmp_path)

    def job(name: str, program: str, minutes: float = 0.01, goes_on: bool = False) -> Job:
        folder = where.work / name
        start = f"from pathlib import Path; f = Path({str(folder)!r}); f.mkdir(parents=True, exist_ok=True)\n"
        return Job("a", name, (sys.executable, "-c", start + program), minutes, goes_on, ("*.jsonl",))

    table = "# T\\n\\n## sizes\\n\\n| way | s | ratio |\\n|---|---:|---:|\\n| ours | 2 | **1.5** [1, 2] |\\n"
    measured = f"Path({str(where.out / 'first.md')!r}).write_text('{table}')\n"
    wanted = [
        job("first", measured + "(f / 'samples.jsonl').write_text('kept')"),
        job("long", "pass", minutes=3.0),
        job("fails", "raise SystemExit(3)"),
        job("training", _SAVES, goes_on=True),
        job("last", "(f / 'samples.jsonl').write_text('too')", minutes=0.05),
    ]

    def told() -> dict[str, str]:
        with (where.out / "rows.csv").open(newline="") as file:
            return {row["job"]: row["status"] for row in csv.DictReader(file)}

    parts.run(wanted, where, minutes=0.2)
    assert told() == {"first": "done", "fails": "failed (3)", "training": "goes on"}, "the last one found no time"
    assert "long: not begun" in capsys.readouterr().out
    assert packed(where.out) == {"first/samples.jsonl.gz": b"kept", "training/half.jsonl.gz": b"half"}
    with (where.out / "rows.csv").open(newline="") as file:
        cells = [(row["what"], row["metric"], row["value"]) for row in csv.DictReader(file) if row["job"] == "first"]
    assert cells[1:] == [("sizes: ours", "s", "2"), ("sizes: ours", "ratio", "1.5 [1, 2]")] and cells[0][0] == "job"

    for file in where.out.iterdir():  # as each call finds it
        file.unlink()
    parts.run(wanted, where, minutes=0.2)
    assert told() == {"first": "done", "fails": "failed (3)", "training": "done", "last": "done"}
    assert packed(where.out).keys() == {"training/half.jsonl.gz", "training/samples.jsonl.gz", "last/samples.jsonl.gz"}


def packed(out: Path) -> dict[str, bytes]:
    with tarfile.open(out / "results.tar") as tar:
        return {name: gzip.decompress(tar.extractfile(name).read()) for name in tar.getnames()}  # type: ignore[union-attr]


def test_a_job_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "GRACE", 0.2)
    hangs = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    job = Job("c", "hangs", (sys.executable, "-c", hangs), 1.0, goes_on=True)
    status, seconds = parts._run(job, place(tmp_path), 0.5)
    assert status == "out of time" and seconds < 30


def test_a_score_has_its_setting_machine_and_commit(tmp_path: Path) -> None:
    run = tmp_path / "results" / "lora16"
    run.mkdir(parents=True)
    (tmp_path / "gpu.txt").write_text("NVIDIA H200")
    experiment = {"systems": ["one_stage"], "epsilon": 3.0, "data": {"train_path": "/d/sgd/x.zip"}, "commit": ["abc"]}
    (run / "experiment.yaml").write_text(json.dumps(experiment))
    mechanism = {"noise_multiplier": 1.5, "num_units": 100, "batch_size": 20, "planned_steps": 15}
    (run / "ledger.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in [{"type": "budget"}, mechanism]))
    (run / "one_stage").mkdir()
    (run / "one_stage" / "samples.json").write_text(json.dumps({"word_overlap": 0.3, "notes": ["none"]}))
    (row,) = scores.rows(tmp_path)
    assert (row["data"], row["num_units"], row["expected_batch_size"], row["num_steps"]) == ("SGD", 100, 20, 15)
    assert (row["metric"], row["value"], row["gpu"], row["commit"]) == ("word_overlap", 0.3, "NVIDIA H200", "abc")
    file = tmp_path / "scores.csv"
    scores.main(str(tmp_path), str(file))
    assert file.read_text().splitlines()[0] == ",".join(scores.COLUMNS)
