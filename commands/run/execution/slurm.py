"""A cluster: what it is like, what its jobs ask for, and which of them wait there."""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from commands.run_folder.places import PLACE, ROOT
from commands.run_folder.steps import Step
from doppel.errors import UserError
from doppel.settings.facts import facts_of
from doppel.settings.yaml_files import build, merge, read_yaml

SLURM = ROOT / "slurm"
#: Times as ``sbatch --time`` takes them.
TIMES = "minutes (90), MM:SS (90:00), HH:MM:SS (1:30:00), D-HH (1-12), D-HH:MM (1-12:00) or D-HH:MM:SS (1-12:00:00)"
_TIME = re.compile(r"(?:([0-9]+)-(?![0-9]{3}|2[4-9]|[3-9][0-9]))?([0-9]+)(?::([0-5]?[0-9]))?(?::([0-5]?[0-9]))?")
#: Memory that follows the base, and GiB of a process beside it.
AUTO, _EACH = "auto", 16
_MEMORY = re.compile("([0-9]+)([KMGT]?)")
#: Seconds before the time limit, at which a job is told to save; more for each GiB of a checkpoint, on a busy disk.
_NOTICE, _SAVING = 120, 10
#: The most that ``sbatch --signal`` takes.
_LONGEST_NOTICE = 65_535


@dataclass(frozen=True)
class Site:
    """A cluster and its kind of node: ``slurm/site.yaml`` on top of ``slurm/profiles/PROFILE.yaml``.

    Args:
        profile: Kind of node, a file of ``slurm/profiles``.
        nodes: Nodes per training.
        gpus_per_node: GPUs per node; 0 requests none.
        gpu_type: Their type, as the cluster calls it (``sinfo --format=%G``), such as a100.
        constraint: Features that a node has to have.
        tasks_per_node: Processes of a training per node; null: one per GPU.
        cpus_per_task: Cores per process.
        tool_cpus: Cores of a task of a step that trains nothing; where it has no GPU, as many processes embed private
            texts.
        tool_tasks: Tasks of a step that embeds private texts, which they share: as many on a node as it has GPUs, one
            each; on nodes without, one.
        partition: Partition of the jobs.
        tool_partition: Partition of steps without a GPU, if different.
        account: Account that jobs are charged to.
        qos: Quality of service.
        fit_time: Time limit of a training, which saves and is requeued before it: a time as ``sbatch --time``
            takes it (:data:`TIMES`); null: the partition's.
        predict_time: Time limit of a sampling, likewise.
        tool_time: Time limit of other steps, likewise.
        signal: Signal that SLURM sends before the time limit: USR2, or USR1.
        notice_s: Seconds between the signal and the limit; null: 120, and of a training without LoRA what writing
            its checkpoint may take.
        fit_mem: Memory per process of a training, such as ``16G``; summed for a node's ``--mem``; 0: all of a node;
            null: the cluster's default; auto: 16G, and for a base of 1 GiB and more on this disk what it takes.
        predict_mem: Memory per process of a sampling.
        tool_mem: Memory per task of other steps.
        sbatch_args: Further sbatch options of every job; they win.
        node_sbatch_args: Further sbatch options of jobs that use all GPUs of a node.
        overlays: Configuration files applied on top to every training of a language model.
        python: Python of the jobs, visible on the nodes, in one word or several; null: the one that submits.
        container: What the tasks run in: words before the command, ``apptainer exec --nv image.sif``, or options of
            srun, ``--container-image=…`` of pyxis. It sees the run folder, the code, data and ``scratch``.
        srun_args: Further options of every srun, such as ``--mpi=pmix``.
        modules: Argument of ``module load`` in every job.
        setup: Further lines of bash at the start of every job, after the modules.
        scratch: Fast local disk of each node; temporary files go to SCRATCH/doppel-JOBID, removed at the end.
        environment: Variables of every job, such as NCCL_SOCKET_IFNAME or HF_HOME.
        throttle: Concurrent tasks of a job array.
    """

    profile: str = "generic"
    nodes: int = 1
    gpus_per_node: int = 0
    gpu_type: str | None = None
    constraint: str | None = None
    tasks_per_node: int | None = None
    cpus_per_task: int = 1
    tool_cpus: int = 1
    tool_tasks: int = 1
    partition: str | None = None
    tool_partition: str | None = None
    account: str | None = None
    qos: str | None = None
    fit_time: str | None = "12:00:00"
    predict_time: str | None = "4:00:00"
    tool_time: str | None = "2:00:00"
    signal: Literal["USR1", "USR2"] = "USR2"
    notice_s: int | None = None
    fit_mem: str | None = AUTO
    predict_mem: str | None = AUTO
    tool_mem: str | None = "16G"
    sbatch_args: list[str] = field(default_factory=list)
    node_sbatch_args: list[str] = field(default_factory=list)
    overlays: list[str] = field(default_factory=list)
    python: str | None = None
    container: str | None = None
    srun_args: list[str] = field(default_factory=list)
    modules: str | None = None
    setup: list[str] = field(default_factory=list)
    scratch: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    throttle: int = 4

    def __post_init__(self) -> None:
        for name in ("fit_time", "predict_time", "tool_time"):
            value = getattr(self, name)
            if value is not None and seconds(value) is None:
                raise UserError(f"{name} is {value!r}: give {TIMES}")
        numbers = ("nodes", "tasks_per_node", "cpus_per_task", "tool_cpus", "tool_tasks", "throttle", "gpus_per_node")
        for name in numbers:
            value, least = getattr(self, name), 0 if name == "gpus_per_node" else 1
            if value is not None and value < least:
                raise UserError(f"{name} is {value}: give a whole number of at least {least}")
        if self.notice_s is not None and not 1 <= self.notice_s <= _LONGEST_NOTICE:
            raise UserError(f"notice_s is {self.notice_s}: give seconds from 1 to {_LONGEST_NOTICE}, or null")
        for name in ("fit_mem", "predict_mem", "tool_mem"):
            value = getattr(self, name)
            if value not in (None, AUTO) and not _MEMORY.fullmatch(value):
                raise UserError(f"{name} is {value!r}: give auto, or a whole number with K, M, G or T, such as 16G")

    @property
    def interpreter(self) -> list[str]:
        """The Python of the steps."""
        return shlex.split(self.python) if self.python else [sys.executable]

    def exported(self, code: Path) -> dict[str, str]:
        """Return variables that ``slurm/job.sh`` reads, by where the code lies; sbatch takes them from where it is
        called. Its option ``--export`` would take them apart at commas, which names of folders have.
        """
        variables = {
            "DOPPEL_CODE": str(code),
            "DOPPEL_MODULES": self.modules,
            "DOPPEL_SETUP": "\n".join(self.setup),
            "DOPPEL_SCRATCH": self.scratch,
            "DOPPEL_CONTAINER": "\n".join(shlex.split(self.container or "")),
            "DOPPEL_SRUN_ARGS": "\n".join(self.srun_args),
        }
        named = {name: value for name, value in variables.items() if value}
        return named | {name: str(value) for name, value in self.environment.items()}

    def sbatch(self, steps: Sequence[Step]) -> list[str]:
        """Return the ``sbatch`` command with the resources of a job.

        Args:
            steps: What it runs: a step of a run, or of several runs, each in its turn. The largest base of a training
                or sampling decides about the memory.
        """
        kind = steps[0].kind
        is_on_all = kind in ("fit", "predict")  # devices of its nodes
        if is_on_all:
            gpus, nodes = self.gpus_per_node, self.nodes if kind == "fit" else 1
            tasks, cpus = self.tasks_per_node or max(gpus, 1), self.cpus_per_task
        else:
            all_tasks = max(self.tool_tasks, 1) if any(step.embeds for step in steps) else 1
            tasks, cpus = min(all_tasks, max(self.gpus_per_node, 1)), self.tool_cpus
            gpus, nodes = min(self.gpus_per_node, tasks if kind == "metrics" else 0), -(-all_tasks // tasks)
        own = kind if is_on_all else "tool"
        time, memory = getattr(self, f"{own}_time"), getattr(self, f"{own}_mem")
        more = [*(self.node_sbatch_args if is_on_all else []), *self.sbatch_args]
        base, checkpoint = _of_bases(tasks, steps) if is_on_all else (0, 0)
        notice = self.notice_s or min(_NOTICE + (_SAVING * checkpoint if kind == "fit" else 0), _LONGEST_NOTICE)
        limit = seconds(time) if time is not None and is_on_all else None
        if limit is not None and limit <= notice:  # it would be told to save at its start, and again after each requeue
            raise UserError(
                f"{own}_time is {time!r}, and a job is told to save {notice} s before it ends, so this one would do "
                f"nothing else: give more than {notice} s, or a smaller notice_s"
            )
        options = {
            "chdir": PLACE,
            "export": "ALL",
            "nodes": nodes,
            "ntasks-per-node": tasks,
            "cpus-per-task": cpus,
            "gres": ":".join(["gpu", *([self.gpu_type] if self.gpu_type else []), str(gpus)]) if gpus else None,
            "constraint": self.constraint,
            "partition": self.partition if is_on_all or gpus else self.tool_partition or self.partition,
            "account": self.account,
            "qos": self.qos,
            "time": time,
            "signal": f"{self.signal}@{notice}",
            "mem": None if any(word.startswith("--mem") for word in more) else _times(memory, tasks, base),
        }
        return ["sbatch", "--parsable", *(f"--{k}={v}" for k, v in options.items() if v is not None), *more]


def _times(memory: str | None, tasks: int, base: int) -> str | None:
    """The memory of several processes, and GiB of a base beside it."""
    if memory == AUTO:
        return f"{_EACH * tasks + base}G"
    match = _MEMORY.fullmatch(memory or "")
    return match and f"{int(match[1]) * tasks}{match[2]}"


def _of_bases(tasks: int, steps: Sequence[Step]) -> tuple[int, int]:
    """GiB that the largest base of some steps takes on a node, and GiB of the largest checkpoint with one."""
    models = [(step.config.get("model") or {}).get("init_args") or {} for step in steps]
    named = [model for model in models if model.get("base_model")]
    if not named:
        return 0, 0
    from doppel.models.memory import host_bytes  # with torch

    found = [host_bytes(ROOT / str(model["base_model"]), bool(model.get("lora")), tasks) for model in named]
    memory, checkpoint = map(max, zip(*found, strict=True))
    return memory >> 30, checkpoint >> 30


def load_site(path: Path | None = None, changes: Mapping[str, Any] | None = None) -> Site:
    """Read what this cluster is like: its file or ``slurm/site.yaml``, if there is one, with changes on top.

    Raises:
        UserError: There is no such file or profile, or one holds what a site has not.
    """
    file = path or SLURM / "site.yaml"
    layers = {
        "--slurm": dict(changes or {}),
        str(file): read_yaml(file, facts_of(Site)) if path or file.is_file() else {},
    }
    name = merge(*reversed(layers.values())).get("profile", "generic")
    profile = SLURM / "profiles" / f"{name}.yaml"
    if not profile.is_file():
        known = ", ".join(sorted(path.stem for path in profile.parent.glob("*.yaml")))
        raise UserError(f"there is no profile {profile.stem} in {profile.parent}: give one of {known}")
    layers[str(profile)] = read_yaml(profile, facts_of(Site))
    for where, layer in [*layers.items(), (str(file), merge(*reversed(layers.values())))]:
        try:
            site = Site(**build(Site, layer, where))
        except UserError as error:
            raise error if error.about else UserError(str(error), about=where) from None
    return site


def queue(*runs: Path) -> dict[str, str]:
    """Return where each job of runs that is in the queue stands, by id; none where there is no cluster.

    Raises:
        UserError: SLURM does not tell.
    """
    jobs = [job for run in runs for job in jobs_of(run).values()]
    if not jobs or shutil.which("squeue") is None:
        return {}
    fields = "JobArrayID:|,State:|,RestartCnt:|,Reason:|"
    command = ["squeue", f"--jobs={','.join(jobs)}", "--array", "--noheader", f"--Format={fields}"]
    answer = subprocess.run(command, capture_output=True, text=True)
    if answer.returncode and "Invalid job id" not in answer.stderr:  # as it says of a single one that is forgotten
        raise UserError(f"squeue does not tell what is in the queue: {' '.join(answer.stderr.split())}")
    found = dict[str, str]()
    for line in answer.stdout.splitlines():
        job, state, restarts, reason = (word.strip() for word in line.split("|")[:4])
        why = f" ({reason})" if reason not in ("None", "") else ""
        times = f", requeued {restarts} times" if restarts not in ("0", "") else ""
        found[job] = f"job {job} is {state}{why}{times}"
    return found


def jobs_of(run: Path) -> dict[str, str]:
    """Return the last job of each step."""
    return {file.stem: file.read_text(encoding="utf-8").strip() for file in (run / "slurm").glob("*.job")}


def refuse_unfit(jobs: Mapping[str, Sequence[str]]) -> None:
    """Ask the cluster whether it would take jobs, before any of them is submitted.

    ``sbatch --test-only`` knows of accounts, partitions, GPUs and memory. A time above its partition's limit it takes,
    where the cluster does not enforce limits, and the job waits for ever: so the limit is read.

    Args:
        jobs: Name of a step → sbatch with its options, and the script; of equal ones the first is asked for.

    Raises:
        UserError: It would not.
    """
    limits = _limits()
    for words, name in {tuple(words): name for name, words in reversed([*jobs.items()])}.items():
        options = dict(word.split("=", 1) for word in words if word.startswith("--") and "=" in word)
        answer = subprocess.run([words[0], "--test-only", *words[1:]], capture_output=True, text=True)
        why = "; ".join(line for line in answer.stderr.splitlines() if line) if answer.returncode else None
        time, partition = options.get("--time", ""), options.get("--partition", "")
        limit = limits.get(partition, "")
        if why is None and (seconds(time) or 0) > (seconds(limit) or math.inf):
            why = f"sbatch's --time={time} is above the {limit} of partition {partition or 'by default'}"
        if why is not None:
            raise UserError(
                f"sbatch refused {name}, and nothing was submitted: {why.removeprefix('sbatch: error: ')}: correct "
                "slurm/site.yaml, or give --slurm KEY=VALUE. Where no cluster answers, --local runs it on this machine"
            )


def _limits() -> dict[str, str]:
    """Time limits of the partitions that have one; that by default has no name."""
    command = ["sinfo", "--noheader", "--format=%P %l"]
    told = subprocess.run(command, capture_output=True, text=True).stdout if shutil.which("sinfo") else ""
    limits = dict[str, str]()
    for name, limit in map(str.split, told.splitlines()):
        if seconds(limit) is not None:
            limits[name.rstrip("*")] = limit
            limits |= {"": limit} if name.endswith("*") else {}
    return limits


def seconds(time: str) -> int | None:
    """Return the seconds of a time as sbatch takes it (:data:`TIMES`); None of what is none, such as infinite."""
    if (match := _TIME.fullmatch(time)) is None:
        return None
    days, hours, minutes, rest = (int(part or 0) for part in match.groups())
    if match[1] is None and match[4] is None:  # minutes come first
        hours, minutes, rest = 0, hours, minutes
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest


def submit(name: str, words: Sequence[str], variables: Mapping[str, str]) -> str:
    """Submit a job; its id.

    Args:
        name: Of its step.
        words: sbatch and its words.
        variables: That it finds, beside those of this process.

    Raises:
        UserError: sbatch refused it.
    """
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, env={**os.environ, **variables})
    if done.returncode:
        raise UserError(
            f"sbatch refused {name}; give the command again once this is mended: what is in the queue stays there. "
            "Where no cluster answers, --local runs it on this machine"
        )
    return done.stdout.strip().split(";")[0]
