"""The SLURM job that this process belongs to."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from doppel.console.again import AGAIN_FILE

#: Names of jobs that a person works in; nothing is requeued there, and Lightning starts its own processes.
_INTERACTIVE = ("bash", "interactive")


@dataclass(frozen=True)
class SlurmJob:
    """A batch job, or one task of a job array. A requeue keeps all of it.

    Attributes:
        job: Number of the job; of the whole array for one of its tasks.
        task: Number of the task in its array; None outside arrays.
    """

    job: str
    task: str | None = None

    @classmethod
    def current(cls, environment: Mapping[str, str] = os.environ) -> SlurmJob | None:
        """Return the batch job that this process runs in; None without SLURM and in an interactive session."""
        if "SLURM_JOB_ID" not in environment or environment.get("SLURM_JOB_NAME") in _INTERACTIVE:
            return None
        task = environment.get("SLURM_ARRAY_TASK_ID")
        return cls(environment["SLURM_JOB_ID"] if task is None else environment["SLURM_ARRAY_JOB_ID"], task)

    def __str__(self) -> str:
        """As SLURM's commands name it: ``JOB`` or ``JOB_TASK``."""
        return self.job if self.task is None else f"{self.job}_{self.task}"

    def requeue(self) -> str | None:
        """Give the job back to the queue, which ends it soon.

        Scripts of this project do it themselves once their tasks have ended: in a container SLURM has no command, so
        they are left a file. A job that is ending already, because its user cancelled it or its time is over, is left
        alone.

        Returns:
            None if the job was requeued, else why it was not.
        """
        if AGAIN_FILE in os.environ:
            Path(os.environ[AGAIN_FILE]).touch()
            return None
        state, _ = _run("squeue", "--noheader", "--format=%T", "--jobs", str(self))
        return f"its state is {state}" if state not in ("", "RUNNING") else _run("scontrol", "requeue", str(self))[1]


def _run(*command: str) -> tuple[str, str | None]:
    """What a SLURM command answers, and why it failed, if it did."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        return "", f"there is no {command[0]} on this node"
    except subprocess.TimeoutExpired:
        return "", f"{command[0]} did not answer for a minute"
    failed = f"{command[0]} said: {answer.stderr.strip() or answer.returncode}"
    return answer.stdout.strip(), failed if answer.returncode else None
