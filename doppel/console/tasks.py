"""A step of several tasks, as srun and torchrun start them: the first one runs it, the others work for it.

The first task names what the others may do on a board, a file which it locks for as long as it runs. Who does a piece
of the work locks its file; where a process ends, the kernel unlocks what it had.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from doppel.console.say import say

#: Variable that names the board: a path on a file system that all tasks share, where no file is yet.
BOARD = "DOPPEL_TASKS"
#: Command of the tasks beside the first.
WORK = "work"
_PAUSE = 0.2  # seconds
_held: list[IO[bytes]] = []  # the board: a file that is closed is unlocked


def words_of_task(words: Sequence[str]) -> list[str]:
    """Return what this process has to run where a step is started: its words in the first task, else ``work``."""
    several = _number_of_tasks() > 1
    if several and _place("RANK", "SLURM_PROCID") > 0:
        return [WORK]
    if several and BOARD in os.environ:
        _held.append(_held_board(Path(os.environ[BOARD])))
    return list(words)


def have_helpers() -> bool:
    """Return whether this is the first of several tasks."""
    return bool(_held)


def tell(file: Path) -> None:
    """Name a file on the board, which tells the other tasks what they may do; they may pass over it."""
    for board in _held:
        board.write(f"{file}\n".encode())


def told() -> Iterator[Path]:
    """Yield the files that the first task names, as it names them, until it has ended."""
    name = os.environ.get(BOARD)
    if name is None:
        say(f"   {BOARD} names no file: the first task does all of the step by itself")
        return
    while not os.path.exists(name):  # what started the tasks ends them where the first ends before
        time.sleep(_PAUSE)
    is_there, place = True, 0
    while is_there:
        with open(name, "r+b") as board:  # anew each time, for a file system may tell of changes then alone
            is_there = not _lock(board)  # before the last look
            board.seek(place)
            lines = board.readlines()
        for line in lines:
            if line.endswith(b"\n"):
                place += len(line)
                yield Path(os.fsdecode(line[:-1]))
        time.sleep(_PAUSE)


@contextmanager
def claimed(path: Path) -> Iterator[IO[bytes] | None]:
    """Open the file of a piece of work and claim it for this process, as long as the block lasts.

    Yields:
        None where the file is gone, or another process has the claim.
    """
    try:
        file = path.open("r+b")
    except FileNotFoundError:
        yield None
        return
    with file:
        yield file if _lock(file) else None


def local_number() -> int:
    """Return which task of its node this process is, from 0."""
    return _place("LOCAL_RANK", "SLURM_LOCALID")


def _held_board(path: Path) -> IO[bytes]:
    """A new board, held before others can see it."""
    board: Any = tempfile.NamedTemporaryFile(dir=path.parent, buffering=0, delete=False)  # noqa: SIM115
    fcntl.lockf(board, fcntl.LOCK_EX)
    os.replace(board.name, path)
    return board


def _lock(file: IO[bytes]) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # of another process, as one system or the other says
        return False
    return True


def _number_of_tasks() -> int:
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return int(os.environ["WORLD_SIZE"])
    return int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))


def _place(torchrun: str, srun: str) -> int:
    return int(os.environ.get(torchrun if "TORCHELASTIC_RUN_ID" in os.environ else srun, "0"))
