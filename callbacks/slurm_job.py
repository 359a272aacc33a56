"""The SLURM job that this process belongs to."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

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
        """The batch job that this process runs in; None without SLURM and in an interactive session."""
        if "SLURM_JOB_ID" not in environment or environment.get("SLURM_JOB_NAME") in _INTERACTIVE:
            return None
        task = environment.get("SLURM_ARRAY_TASK_ID")
        return cls(environment["SLURM_JOB_ID"] if task is None else environment["SLURM_ARRAY_JOB_ID"], task)

    def __str__(self) -> str:
        """As SLURM's commands name it: ``JOB`` or ``JOB_TASK``."""
        return self.job if self.task is None else f"{self.job}_{self.task}"

    def requeue(self) -> str | None:
        """Give the job back to the queue, which ends it soon.

        A job that is ending already, because its user cancelled it or its time is over, is left alone.

        Returns:
            None if the job was requeued, else why it was not.
        """
        state = _run("squeue", "--noheader", "--format=%T", "--jobs", str(self))
        state = state.stdout.strip() if isinstance(state, subprocess.CompletedProcess) else ""
        if state not in ("", "RUNNING"):
            return f"its state is {state}"
        answer = _run("scontrol", "requeue", str(self))
        if isinstance(answer, str):
            return answer
        return None if answer.returncode == 0 else f"scontrol said: {answer.stderr.strip() or answer.returncode}"


def _run(*command: str) -> subprocess.CompletedProcess[str] | str:
    """The answer of a SLURM command, or why there is none."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        return f"there is no {command[0]} on this node"
    except subprocess.TimeoutExpired:
        return f"{command[0]} did not answer for a minute"
