"""A step of a job that is told of its end: it stops, and the job goes back into the queue."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from types import FrameType

#: Variable that names a file: where a task makes it, ``slurm/job.sh`` puts its job into the queue again.
AGAIN_FILE = "DOPPEL_AGAIN"
#: EX_TEMPFAIL of sysexits.h: not done, but nothing is wrong. Run the same command again.
EXIT_STATUS = 75


def stop_when_told() -> None:
    """Let a cluster's notice end this process, wherever it is, as Ctrl-C would: what is on disk stays.

    A notice is SIGUSR1, SIGUSR2 or, where jobs are preempted without one of these, SIGTERM. A training and a sampling
    take the signals themselves, and save first.
    """
    if AGAIN_FILE not in os.environ or threading.current_thread() is not threading.main_thread():
        return
    process = os.getpid()

    def stop(number: int, frame: FrameType | None) -> None:
        if os.getpid() == process:  # what it has forked ends with it
            Path(os.environ[AGAIN_FILE]).touch()
            raise SystemExit(EXIT_STATUS)
        if number == signal.SIGTERM:  # by which a process ends its own
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
        signal.signal(number, stop)
