"""Private training on a real SLURM, two tasks under DDP: a pipeline, a preemption, a hard kill."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

from commands.run.experiment.experiment import load
from commands.run.steps.recipes import steps_of
from doppel.privacy.ledger import Ledger
from tests.slurm.cluster import SlurmCluster
from tests.slurm.launches import write_experiment

ROOT = Path(__file__).resolve().parents[2]
NUM_STEPS = 60  # of each stage: long enough to be caught in the middle


class Pipelines:
    """Tiny pipelines with known noise, for weights are compared; submitted as users do."""

    def __init__(self, cluster: SlurmCluster, folder: Path, model: str, corpus: str) -> None:
        self.cluster, self.folder = cluster, folder
        lines = [json.loads(line) for line in Path(corpus).read_bytes().splitlines()]
        reference = folder / "reference.jsonl"
        reference.write_text(
            "".join(json.dumps({**line, "utterance": f"so {line['utterance']}"}) + "\n" for line in lines)
        )
        self.experiment = write_experiment(
            folder / "tiny.yaml",
            systems=["one_stage", "two_stage"],
            epochs={"one_stage": 12, "parse_tree": 12, "parse2utterance": 12},
            data={"train_path": corpus, "unit": "utterance", "batch_size": 12, "sampling_seed": 3},
            model={"base_model": model, "dropout": 0.1},
            sampling={"max_new_tokens": 8, "redraws": None},
            privacy={"accountant": "rdp", "seed": 5},
            num_samples=6,
            reference=str(reference),
            featurizer=model,
        )

    def submit(self, name: str) -> dict[str, str]:
        """Submit the pipeline, and give the job of every stage that is not done."""
        command = [sys.executable, str(ROOT / "cli.py"), "run", str(self.experiment), str(self.folder / name)]
        cpu = ["gpus_per_node=0", "tasks_per_node=2", "cpus_per_task=1", "tool_cpus=1"]
        printed = self.cluster.run(*command, "--seed=1", "--slurm", *cpu, OMP_NUM_THREADS="1")
        return dict(re.findall(r"(\S+): job (\S+)", printed))

    def ledger(self, name: str) -> Ledger:
        return Ledger(self.folder / name / "ledger.jsonl")

    def steps(self, name: str, stage: str) -> int:
        """Steps that a stage has spent so far."""
        path = self.folder / name / "ledger.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return sum(f'/{stage}"' in line and '"spend"' in line for line in lines)

    def wait_for_steps(self, name: str, stage: str, job: str, at_least: int) -> None:
        deadline = time.monotonic() + 300
        while self.steps(name, stage) < at_least:
            output = self.cluster.output(self.cluster.job(job))
            assert time.monotonic() < deadline, f"{stage} took {self.steps(name, stage)} steps:\n{output}"
            time.sleep(0.1)

    def checkpoint(self, name: str, stage: str) -> dict:
        (path,) = (self.folder / name).glob(f"*/{stage}/checkpoints/last.ckpt")
        return torch.load(path, weights_only=True)


@pytest.fixture(scope="module")
def pipelines(
    slurm_cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory, tiny_model: str, corpus: str
) -> Pipelines:
    return Pipelines(slurm_cluster, tmp_path_factory.mktemp("pipelines"), tiny_model, corpus)


@pytest.fixture(scope="module")
def undisturbed(pipelines: Pipelines) -> str:
    """A pipeline that was submitted by one command and has run to its end."""
    jobs = pipelines.submit("undisturbed")
    assert jobs.keys() == {step.name for step in steps_of(load(pipelines.experiment), pipelines.folder / "undisturbed")}
    pipelines.cluster.wait(jobs["report"], "COMPLETED", timeout=1500)
    return "undisturbed"


@pytest.mark.slurm
@pytest.mark.slow
def test_a_pipeline_submitted_by_one_command_finishes(pipelines: Pipelines, undisturbed: str) -> None:
    run = pipelines.folder / undisturbed
    report = json.loads((run / "report.json").read_text())
    assert set(report["metrics"]) == {"one_stage", "two_stage"}
    assert all(spent["epsilon"] is None for spent in report["privacy"]["systems"].values())  # seeds were fixed
    for stage in ("one_stage", "parse_tree", "parse2utterance"):
        assert pipelines.steps(undisturbed, stage) == NUM_STEPS
        assert (
            "Initializing distributed: GLOBAL_RANK: 1, MEMBER: 2/2"
            in next((run / "slurm").glob(f"*-{stage}-[0-9]*_1.out")).read_text()
        )
    assert (run / "two_stage/samples.jsonl").read_text().count("\n") == 6


@pytest.mark.slurm
@pytest.mark.slow
@pytest.mark.hours
def test_a_requeued_training_ends_as_an_undisturbed_one_and_a_killed_one_never_tells_less(
    pipelines: Pipelines, undisturbed: str
) -> None:
    cluster, name = pipelines.cluster, "disturbed"
    jobs = pipelines.submit(name)
    pipelines.wait_for_steps(
        name, "one_stage", jobs["one_stage-one_stage"], at_least=7
    )  # in the middle of an epoch of 5 steps
    cluster.run("scancel", "--signal=USR2", jobs["one_stage-one_stage"])
    pipelines.wait_for_steps(name, "parse_tree", jobs["two_stage-parse_tree"], at_least=8)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(pipelines.folder / name / "two_stage" / "parse_tree").encode() in words and b"fit" in words:
            os.kill(int(process.name), signal.SIGKILL)
    cluster.wait(jobs["two_stage-parse_tree"], "FAILED")
    assert 8 <= pipelines.steps(name, "parse_tree") < NUM_STEPS

    requeued = cluster.wait(jobs["one_stage-one_stage"], "COMPLETED")
    assert requeued["Restarts"] == "1"
    assert pipelines.steps(name, "one_stage") == NUM_STEPS
    ours, theirs = (pipelines.checkpoint(run, "one_stage") for run in (name, undisturbed))
    assert ours["global_step"] == theirs["global_step"] == NUM_STEPS
    for key, weight in theirs["state_dict"].items():
        assert torch.equal(ours["state_dict"][key], weight), key
    cluster.wait(jobs["one_stage-words"], "COMPLETED")
    assert pipelines.ledger(name).epsilon("one_stage") == pipelines.ledger(undisturbed).epsilon("one_stage")

    cluster.run(
        "scancel", *(jobs[stage] for stage in ("one_stage-sample_one_stage", "one_stage-evaluate") if stage in jobs)
    )
    again = pipelines.submit(name)
    assert "two_stage-parse_tree" in again
    cluster.wait(again["two_stage-parse_tree"], "COMPLETED")
    output = pipelines.folder / name / "slurm" / f"two_stage-parse_tree-{again['two_stage-parse_tree']}.out"
    assert "resuming from parse_tree/checkpoints/last.ckpt" in output.read_text()
    assert pipelines.checkpoint(name, "parse_tree")["global_step"] >= NUM_STEPS - 10
    cluster.wait(again.get("two_stage-parse2utterance", jobs["two_stage-parse2utterance"]), "COMPLETED")
    cluster.wait(again.get("two_stage-words", jobs["two_stage-words"]), "COMPLETED")
    spent = pipelines.ledger(name).epsilon("two_stage")
    assert pipelines.ledger(undisturbed).epsilon("two_stage") <= spent <= 8
    cluster.run("scancel", "--user=root")
