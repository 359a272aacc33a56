"""A process that ends with the one that started it; imports nothing that takes time."""

from __future__ import annotations

import os
import signal
import sys

#: Names, to a process that is started anew, the one with which it is to end.
VARIABLE = "DOPPEL_PARENT"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with(parent: int) -> None:
    """Have the kernel kill this process when its parent is gone, also by ``kill -9``.

    What a process has written then stays as a kill leaves it: files are replaced whole, and a ledger is ahead of what
    was drawn. Without this an orphan would go on, and hold its run folder against the command that wants to go on.

    Call it from the process's first thread. Only Linux has it; elsewhere an orphan ends by itself.

    Args:
        parent: Process id of the parent.
    """
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it was gone before the kernel was asked
        os.kill(os.getpid(), signal.SIGKILL)


def end_with_named() -> None:
    """End with the parent that :data:`VARIABLE` names, if any; what this process starts does not see the variable."""
    parent = os.environ.pop(VARIABLE, None)
    if parent is not None:
        end_with(int(parent))
