"""The pipelines on a real SLURM: order, failures, preemption, arrays.

A program in place of python makes a stage last a second, so that what is tested is the scheduling.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.slurm.cluster import SlurmCluster

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = str(ROOT / "configs" / "experiments" / "quickstart.yaml")

PROGRAM = """\
#!{python} -S
# cli.py COMMAND …; a file BEHAVE/STAGE says what is special about a stage: fail, meet another one, hold, wait
import json, os, signal, sys, time
words, place = sys.argv[1:], os.environ["BEHAVE"]
if words[0] == "-P":  # what a job notes of its step
    os.execv("{python}", ["{python}", *words])
out = words[words.index("--run_dir" if "--run_dir" in words else "--config") + 1]
stage = os.path.basename(out).removesuffix(".yaml")
rank, restart = int(os.environ.get("SLURM_PROCID", -1)), int(os.environ.get("SLURM_RESTART_COUNT", 0))


def note(what):
    line = dict(at=time.time(), what=what, stage=stage, rank=rank, restart=restart, words=" ".join(words) + " ")
    tmp = os.environ.get("TMPDIR", "")
    line |= dict(place=os.environ["PATH"], setup=os.environ.get("SETUP"), tmp=tmp, has_tmp=os.path.isdir(tmp))
    with open(place + "/log", "a") as file:
        file.write(json.dumps(line) + "\\n")


def checkpoint():
    os.makedirs(out + "/checkpoints", exist_ok=True)
    open(out + "/checkpoints/last.ckpt", "w").close()


def preempted(*_):
    if words[1] == "fit":
        checkpoint()
    if rank == 0:
        open(os.environ["DOPPEL_AGAIN"], "w").close()
    sys.exit(75)


note("start")
path = place + "/" + stage
behaviour = open(path).read() if os.path.exists(path) else ""
if behaviour == "fail":
    sys.exit(3)
if behaviour == "meet":
    deadline = time.time() + 60
    while "parse2utterance" not in open(place + "/log").read() and time.time() < deadline:
        time.sleep(0.2)
while behaviour == "hold" and open(path).read():
    time.sleep(0.2)
if behaviour == "wait" and restart == 0:
    time.sleep(2)  # imports
    signal.signal(signal.SIGUSR2, preempted)
    note("listening")
    time.sleep(300)
time.sleep(1)
if words[1] == "fit":
    checkpoint()
note("end")
"""


class Pipeline:
    """Submits with the program in place of python, and reads what it wrote down."""

    def __init__(self, cluster: SlurmCluster, folder: Path) -> None:
        self.cluster, self.folder, self.run = cluster, folder, folder / "run"
        folder.chmod(0o755)
        self.site: dict[str, object] = {}
        self.python = folder / "python"
        self.python.write_text(PROGRAM.replace("{python}", sys.executable))
        self.python.chmod(0o755)

    def submit(self, *words: str, experiment: str = QUICKSTART, run: Path | None = None) -> dict[str, str]:
        """Submit, and give the job of every stage; what stands in for a training would charge nothing."""
        site = self.folder / "site.yaml"
        fields = {
            "python": str(self.python),
            "gpus_per_node": 0,
            "tasks_per_node": 2,
            "cpus_per_task": 1,
            "tool_cpus": 1,
        }
        site.write_text(json.dumps(fields | self.site))
        command = [sys.executable, str(ROOT / "cli.py"), "run", experiment, str(run or self.run), "--submit"]
        command += [] if "--grid" in words or experiment != QUICKSTART else ["--epsilon=inf"]
        self.printed = self.cluster.run(*command, f"--site={site}", *words, BEHAVE=str(self.folder))
        return dict(re.findall(r"── (.+): (?:job|task) (\S+)$", self.printed, re.MULTILINE))

    def behave(self, stage: str, how: str) -> None:
        (self.folder / stage).write_text(how)

    def log(self, what: str = "", stage: str = "") -> list[dict]:
        path = self.folder / "log"
        lines = [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []
        return [line for line in lines if what in ("", line["what"]) and stage in ("", line["stage"])]

    def wait_for(self, number: int, what: str, stage: str) -> None:
        deadline = time.monotonic() + 120
        while len(self.log(what, stage)) < number:
            assert time.monotonic() < deadline, f"{stage} has no {what}: {self.log()}"
            time.sleep(0.2)


@pytest.fixture
def pipeline(slurm_cluster: SlurmCluster, tmp_path: Path) -> Pipeline:
    return Pipeline(slurm_cluster, tmp_path)


@pytest.mark.slurm
def test_stages_run_in_order_survive_a_failure_and_are_not_run_twice(pipeline: Pipeline) -> None:
    """In a folder of whose name SLURM, a shell and a pattern of files would each make something else."""
    pipeline.run = pipeline.folder / "50%A 'of' [x]"
    pipeline.behave("parse_tree", "fail")
    pipeline.behave("one_stage", "meet")
    jobs = pipeline.submit()
    assert len(jobs) == 10
    pipeline.cluster.wait(jobs["two_stage-parse_tree"], "FAILED")
    pipeline.cluster.wait(jobs["one_stage-evaluate"], "COMPLETED")
    for name in ("two_stage-sample_parse_tree", "two_stage-sample_parse2utterance", "two_stage-evaluate", "report"):
        pipeline.cluster.wait(jobs[name], "CANCELLED")
    pipeline.cluster.wait(jobs["two_stage-parse2utterance"], "COMPLETED")
    first, second = pipeline.log(stage="one_stage"), pipeline.log("start", "parse2utterance")
    assert {line["rank"] for line in first} == {0, 1} and "--trainer.devices 2" in first[0]["words"]
    assert second[0]["at"] < first[-1]["at"], "trainings run side by side"

    pipeline.behave("parse_tree", "hold")
    again = pipeline.submit()
    assert pipeline.printed.count("done already, skipped") == 5
    assert again.keys() == {
        "two_stage-parse_tree",
        "two_stage-sample_parse_tree",
        "two_stage-sample_parse2utterance",
        "two_stage-evaluate",
        "report",
    }
    pipeline.submit()
    assert pipeline.printed.count("is in the queue already") == 5
    status = [sys.executable, str(ROOT / "cli.py"), "status", str(pipeline.run)]
    pipeline.wait_for(3, "start", "parse_tree")
    told = pipeline.cluster.run(*status)
    assert "  one_stage-one_stage: done in " in told
    assert f"  two_stage-parse_tree: job {again['two_stage-parse_tree']} is RUNNING\n" in told
    assert f"  report: job {again['report']} is PENDING (Dependency)\n" in told
    told = pipeline.cluster.run(*(word.replace("status", "cancel") for word in status))
    assert told.count("cancelled 50%A 'of' [x]") == 5
    for job in again.values():
        pipeline.cluster.wait(job, "CANCELLED")
    pipeline.behave("parse_tree", "")
    again = pipeline.submit()
    assert len(again) == 5
    pipeline.cluster.wait(again["report"], "COMPLETED")
    assert all(len(pipeline.log("end", stage)) == 2 for stage in ("one_stage", "parse_tree", "sample_parse_tree"))
    ends = [pipeline.log("end", s)[-1]["at"] for s in ("parse_tree", "sample_parse_tree", "sample_parse2utterance")]
    assert ends == sorted(ends) and len(pipeline.log("end", "report")) == 1


@pytest.mark.slurm
def test_training_and_sampling_are_preempted_and_go_on_in_a_container(pipeline: Pipeline) -> None:
    """The training by hand, the sampling by a job of a partition that comes first; no SLURM command is within."""
    container = pipeline.folder / "container"
    container.write_text('#!/bin/sh\n[ "$1" = exec ] && shift\nPATH=/no/commands exec "$@"\n')
    container.chmod(0o755)
    scratch = pipeline.folder / "scratch"
    pipeline.site = {"container": f"{container} exec", "setup": ["export SETUP='1 2'"], "scratch": str(scratch)}
    for stage in ("one_stage", "sample_one_stage"):
        pipeline.behave(stage, "wait")
    jobs = pipeline.submit("--systems", "one_stage")
    pipeline.wait_for(2, "start", "one_stage")
    pipeline.cluster.run(
        "scancel", "--signal=USR2", jobs["one_stage-one_stage"]
    )  # too early to be heard: it does no harm
    pipeline.wait_for(2, "listening", "one_stage")
    pipeline.cluster.run("scancel", "--signal=USR2", jobs["one_stage-one_stage"])
    assert pipeline.cluster.wait(jobs["one_stage-one_stage"], "COMPLETED")["Restarts"] == "1"
    resumed = [line for line in pipeline.log("start", "one_stage") if line["restart"]]
    assert len(resumed) == 2 and all("--ckpt_path last" in line["words"] for line in resumed)
    told = pipeline.cluster.output(pipeline.cluster.job(jobs["one_stage-one_stage"]))
    assert told.count("── one_stage-one_stage") == 2 and told.count("resuming from one_stage") == 1

    pipeline.wait_for(2, "listening", "sample_one_stage")
    urgent = ["sbatch", "--parsable", "--partition=urgent", "--ntasks=4", "--output=/dev/null", "--wrap=true"]
    began = time.monotonic()
    pipeline.cluster.wait(pipeline.cluster.run(*urgent).strip(), "COMPLETED")
    assert time.monotonic() - began < 50, "it goes when it is asked, not when its grace is over"
    assert pipeline.cluster.wait(jobs["one_stage-sample_one_stage"], "COMPLETED")["Restarts"] == "1"
    pipeline.cluster.wait(jobs["report"], "COMPLETED")
    for line in pipeline.log():
        assert (line["place"], line["setup"], line["has_tmp"]) == ("/no/commands", "1 2", True)
        assert Path(line["tmp"]).parent == scratch
    assert scratch.is_dir() and not list(scratch.iterdir())
    logs = {path.name for path in (pipeline.run / "slurm").glob("one_stage-one_stage-*_*.out")}
    assert {name[-5] for name in logs} == {"0", "1"}, "each rank has a log of its own"


@pytest.mark.slurm
def test_a_tool_that_meets_its_time_limit_goes_back_into_the_queue(pipeline: Pipeline) -> None:
    pipeline.site = {"tool_time": "2", "notice_s": 100}
    pipeline.behave("one_stage-evaluate", "wait")
    jobs = pipeline.submit("--systems", "one_stage")
    assert pipeline.cluster.wait(jobs["one_stage-evaluate"], "COMPLETED")["Restarts"] == "1"
    pipeline.cluster.wait(jobs["report"], "COMPLETED")


@pytest.mark.slurm
def test_array_tasks_have_their_own_folders_and_are_requeued_alone(pipeline: Pipeline) -> None:
    pipeline.behave("one_stage", "wait")
    words = ("--systems", "one_stage", "--grid", "epsilon=inf", "seed=1,2")
    jobs = pipeline.submit(*words)
    first, second = jobs["epsilon=inf,seed=1: one_stage-one_stage"], jobs["epsilon=inf,seed=2: one_stage-one_stage"]
    pipeline.wait_for(4, "listening", "one_stage")
    pipeline.submit(*words)
    assert pipeline.printed.count("in the queue already") == 2
    for job in (first, second):
        pipeline.cluster.run("scancel", "--signal=USR2", job)
    for job in (first, second):
        assert pipeline.cluster.wait(job, "COMPLETED")["Restarts"] == "1"
    for line in pipeline.log("start", "one_stage"):
        folder = re.findall(r"--run_dir (\S+)/one_stage/one_stage ", line["words"])[0]
        assert folder in (f"{pipeline.run}/epsilon=inf,seed=1", f"{pipeline.run}/epsilon=inf,seed=2")
        assert f"--config {folder}/configs/one_stage-one_stage.yaml " in line["words"]
    for point in ("epsilon=inf,seed=1", "epsilon=inf,seed=2"):
        pipeline.cluster.wait(jobs[f"{point}: report"], "COMPLETED")
    pipeline.submit(*words)
    assert pipeline.printed.count("finished already") == 2


@pytest.mark.slurm
def test_a_point_of_a_grid_is_resumed_from_its_folder_whose_name_has_a_comma(pipeline: Pipeline) -> None:
    pipeline.behave("one_stage", "fail")
    jobs = pipeline.submit("--systems", "one_stage", "--grid", "epsilon=inf", "seed=1,2")
    pipeline.cluster.wait(jobs["epsilon=inf,seed=2: one_stage-one_stage"], "FAILED")
    pipeline.cluster.wait(jobs["epsilon=inf,seed=2: report"], "CANCELLED")
    pipeline.behave("one_stage", "")
    point = pipeline.run / "epsilon=inf,seed=2"
    again = pipeline.submit(experiment=str(point / "experiment.yaml"), run=point)
    pipeline.cluster.wait(again["report"], "COMPLETED")
    ended = {re.findall(r"seed=\d", line["words"])[0] for line in pipeline.log("end")}
    assert ended == {"seed=2"} and list((point / "slurm").glob(f"report-{again['report']}.out"))


@pytest.mark.slurm
@pytest.mark.parametrize(
    ("slurm", "why"),
    [
        (["gpus_per_node=1", "gpu_type=a100"], "Invalid generic resource"),
        (["partition=brief"], "above the 1:00:00 of partition brief"),
        (["constraint=ib"], "Invalid feature"),
    ],
)
def test_what_the_cluster_cannot_give_is_one_line(slurm: list[str], why: str, pipeline: Pipeline) -> None:
    words = [sys.executable, str(ROOT / "cli.py"), "run", QUICKSTART, str(pipeline.run), "--submit", "--slurm", *slurm]
    done = subprocess.run(words, capture_output=True, text=True, env=pipeline.cluster.environment)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2 and line.startswith("error: sbatch refused ") and why in line
    assert not pipeline.run.exists()


@pytest.mark.slurm
def test_a_stopped_cluster_leaves_nothing_behind() -> None:
    cluster = SlurmCluster()
    try:
        cluster.start()
        processes = [daemon.pid for daemon in cluster.daemons]
    finally:
        cluster.stop()
    listed = subprocess.run(["ps", "-o", "pid=", "-p", ",".join(map(str, processes))], capture_output=True, text=True)
    assert not listed.stdout.strip() and not cluster.folder.exists()
