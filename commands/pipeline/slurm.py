"""A cluster: what it is like, what its jobs ask for, and which of them wait there."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from commands.pipeline.steps import Kind
from commands.pipeline.yaml_files import ROOT, build, merge, read_yaml
from doppel.console.say import say
from doppel.errors import UserError

SLURM = ROOT / "slurm"


@dataclass(frozen=True)
class Site:
    """A cluster and its kind of node: ``slurm/site.yaml`` on top of ``slurm/profiles/PROFILE.yaml``.

    Args:
        profile: Kind of node, a file of ``slurm/profiles``.
        nodes: Nodes of a training.
        gpus_per_node: GPUs of a node; 0 asks for none.
        tasks_per_node: Processes of a training on a node; null: one a GPU.
        cpus_per_task: Cores of each of them.
        tool_cpus: Cores of a stage that trains nothing.
        partition: Where jobs run.
        tool_partition: Where those without a GPU run, if elsewhere.
        account: Whom they are charged to.
        qos: Quality of service.
        fit_time: Time limit of a training, which saves and goes back into the queue two minutes before.
        predict_time: Of a sampling, likewise; null: as a training.
        tool_time: Of the others.
        sbatch_args: Further options of every job.
        node_sbatch_args: Further options of jobs that take all GPUs of a node.
        overlays: Configuration files on top of every training of a language model.
        python: Python of the jobs; null: the one that submits. Nodes must see it.
        modules: What ``module load`` loads in every job.
        scratch: Fast local disk; a job's temporary files lie in SCRATCH/doppel-JOBID.
        environment: Variables of every job, such as NCCL_SOCKET_IFNAME or HF_HOME.
        throttle: Tasks of an array that run at a time.
    """

    profile: str = "generic"
    nodes: int = 1
    gpus_per_node: int = 0
    tasks_per_node: int | None = None
    cpus_per_task: int = 1
    tool_cpus: int = 1
    partition: str | None = None
    tool_partition: str | None = None
    account: str | None = None
    qos: str | None = None
    fit_time: str | None = None
    predict_time: str | None = None
    tool_time: str | None = None
    sbatch_args: list[str] = field(default_factory=list)
    node_sbatch_args: list[str] = field(default_factory=list)
    overlays: list[str] = field(default_factory=list)
    python: str | None = None
    modules: str | None = None
    scratch: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    throttle: int = 4

    @property
    def exported(self) -> dict[str, str]:
        """Variables that jobs need, which sbatch takes from where it is called."""
        variables = {"DOPPEL_MODULES": self.modules, "DOPPEL_SCRATCH": self.scratch}
        return {**{name: value for name, value in variables.items() if value}, **self.environment}

    def sbatch(self, kind: Kind, root: Path, code: Path) -> list[str]:
        """``sbatch`` with what a job of a kind asks for.

        Args:
            kind: Of the stage.
            root: Where its command runs.
            code: Where its code lies.
        """
        partition, more, gpus, time = self.partition, list(self.sbatch_args), self.gpus_per_node, self.fit_time
        tasks, cpus = self.tasks_per_node or max(gpus, 1), self.cpus_per_task
        if kind in ("fit", "predict"):
            more = self.node_sbatch_args + more
            time = (self.predict_time or time) if kind == "predict" else time
        else:
            tasks, cpus, time = 1, self.tool_cpus, self.tool_time
            gpus = 1 if kind == "metrics" and gpus > 0 else 0
            if gpus == 0:
                partition = self.tool_partition or partition
        options = {
            "chdir": root,
            "export": f"ALL,DOPPEL_CODE={code}",
            "nodes": self.nodes if kind == "fit" else 1,
            "ntasks-per-node": tasks,
            "cpus-per-task": cpus,
            "gres": f"gpu:{gpus}" if gpus else None,
            "partition": partition,
            "account": self.account,
            "qos": self.qos,
            "time": time,
        }
        return ["sbatch", "--parsable", *(f"--{k}={v}" for k, v in options.items() if v is not None), *more]


def load_site(path: Path | None = None, changes: Mapping[str, Any] | None = None) -> Site:
    """Read what this cluster is like.

    Args:
        path: Its file; None: ``slurm/site.yaml``, if there is one.
        changes: Fields in place of the file's.

    Raises:
        UserError: There is no such file or profile, or one holds what a site has not.
    """
    file = path or SLURM / "site.yaml"
    fields = merge(read_yaml(file) if path or file.is_file() else {}, changes or {})
    profile = SLURM / "profiles" / f"{fields.get('profile', 'generic')}.yaml"
    if not profile.is_file():
        known = ", ".join(sorted(path.stem for path in profile.parent.glob("*.yaml")))
        raise UserError(f"there is no profile {profile.stem} in {profile.parent}: give one of {known}")
    return Site(**build(Site, merge(read_yaml(profile), fields), file))


def queued(run: Path, name: str) -> str | None:
    """Id of a job of an earlier submission that is in the queue still."""
    path = run / "slurm" / f"{name}.job"
    if not path.is_file() or shutil.which("squeue") is None:
        return None
    job = path.read_text(encoding="utf-8").strip()
    command = ["squeue", "--noheader", "--format=%i", f"--jobs={job}"]
    answer = subprocess.run(command, capture_output=True, text=True)
    said = (answer.stdout + answer.stderr).strip()
    if answer.returncode and "Invalid job id" not in said:
        raise UserError(f"squeue does not say whether job {job} is in the queue: {said}")
    return job if answer.returncode == 0 and said else None


def submit(name: str, words: Sequence[str], run: Path, site: Site) -> str:
    """Submit a job and write its id down; the id.

    Raises:
        UserError: sbatch refused it.
    """
    environment = {**os.environ, **site.exported}
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, env=environment)
    if done.returncode:
        raise UserError(
            f"sbatch refused {name}; give the command again once this is mended: what is in the queue stays there"
        )
    job = done.stdout.strip().split(";")[0]
    (run / "slurm" / f"{name}.job").write_text(f"{job}\n", encoding="utf-8")
    say(f"── {name}: job {job}")
    return job
