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
from commands.lightning import train
from commands.run.experiment.experiment import load, read_values
from commands.run.steps.recipes import steps_of

ROOT = Path(__file__).resolve().parents[2]


def place(tmp_path: Path, is_rehearsal: bool = False) -> Place:
    data = Path(os.environ.get("DOPPEL_DATA", "data")).resolve()
    return Place(tmp_path / "work", tmp_path / "out", data, "cpu", is_rehearsal)


@pytest.mark.parametrize("is_rehearsal", [True, False])
def test_every_sampling_is_an_experiment_whose_steps_end_with_samples(tmp_path: Path, is_rehearsal: bool) -> None:
    made = [job for job in jobs(place(tmp_path, is_rehearsal)) if job.part in "CDEG"]
    assert {job.part for job in made} == set("CDEG") and len({job.name for job in made}) == len(made)
    for job in made:
        settings = list(job.command[job.command.index("--set") + 1 :])
        system = job.command[job.command.index("--system") + 1]
        experiment = load(ROOT / job.command[3], read_values(settings) | {"systems": [system]})
        steps = [step for step in steps_of(experiment, tmp_path / job.name) if makes_samples(step)]
        assert steps[-1].kind == "predict" and {step.kind for step in steps} >= {"fit", "predict"}


@pytest.mark.parametrize("is_rehearsal", [True, False])
def test_the_adaptation_is_a_configuration_that_the_parser_takes(
    tmp_path: Path, is_rehearsal: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    (job,) = (job for job in jobs(place(tmp_path, is_rehearsal)) if job.part == "B")
    with pytest.raises(SystemExit) as end:
        train.fit([*job.command[3:], "--print_config"])
    assert not end.value.code and "rank: 64" in capsys.readouterr().out


@pytest.mark.slow
def test_what_is_cut_short_leaves_what_is_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = place(tmp_path)

    def job(name: str, program: str, minutes: float = 1.0, part: str = "C") -> Job:
        folder = where.work / name
        start = f"from pathlib import Path; import time; f = Path({str(folder)!r}); f.mkdir(parents=True); "
        return Job(part, name, (sys.executable, "-c", start + program), minutes, ("*.jsonl",))

    wanted = [
        job("first", "(f / 'samples.jsonl').write_text('kept')", part="A"),
        job("fails", "raise SystemExit(3)"),
        job("slow", "(f / 'half.jsonl').write_text('half'); time.sleep(60)", minutes=0.05),
        job("last", "(f / 'samples.jsonl').write_text('too')"),
    ]
    parts.run(wanted, where, minutes=1.0, workers=2)
    table = list(csv.DictReader((where.out / "jobs.csv").open()))
    told = {row["job"]: row["status"] for row in table}
    assert told == {"first": "done", "fails": "failed (3)", "slow": "out of time", "last": "done"}
    with tarfile.open(where.out / "results.tar") as tar:
        found = {name: gzip.decompress(tar.extractfile(name).read()) for name in tar.getnames()}  # type: ignore[union-attr]
    expected = {"first/samples.jsonl.gz": b"kept", "slow/half.jsonl.gz": b"half", "last/samples.jsonl.gz": b"too"}
    assert found == expected
    parts.run(wanted[:1], where, minutes=1.0, workers=2)
    assert len(list(csv.DictReader((where.out / "jobs.csv").open()))) == len(table), "what is done is not run again"
    parts.run([job("never", "pass")], where, minutes=0.0, workers=2)
    assert "never not begun" in capsys.readouterr().out and not (where.work / "never").exists()


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
