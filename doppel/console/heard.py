"""What a run says, written down as well; its steps are heard by this process, so that a notebook shows them, too."""

from __future__ import annotations

import codecs
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from datetime import datetime
from pathlib import Path
from typing import TextIO

from doppel.errors import UserError

#: In a run folder.
LOG = "run.log"
#: Figures that no ε covers, by their name; a path may have a folder of that name.
_PRIVATE = re.compile(r"(?<![\w/.~-])private/")
#: Seconds to wait for the last words of a step that has ended, whose own processes may hold its output.
_PATIENCE = 5.0


class Log:
    """A file of lines, appended to, that its owner alone may read.

    Formal guarantees:
        It has no line with a figure named ``private/…``, of which none is covered by ε. What reading the user's files
        told is said before the first step, and is not written.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._file, self._lock = os.fdopen(descriptor, "a", encoding="utf-8"), threading.Lock()

    def write(self, line: str) -> None:
        """Write a line; of a bar, which is drawn again and again, what it showed last."""
        if not _PRIVATE.search(line):
            with self._lock:
                self._file.write(f"{line.rstrip().rpartition(chr(13))[2]}\n")
                self._file.flush()


def is_read_by_others(out: Path | None) -> bool:
    """Whether a job prints, whose output others read, and figures named ``private/…`` stand in a file of their own."""
    return out is not None and "SLURM_JOB_ID" in os.environ


_log: ContextVar[Log | None] = ContextVar("log", default=None)  # of a thread: what others print is their own


@contextmanager
def written_down(path: Path) -> Iterator[None]:
    """Append what :func:`say` says in this thread, and what steps say (:func:`heard`), to a file."""
    log = Log(path)
    log.write(f"━━ {datetime.now().astimezone().isoformat(' ', 'seconds')}")
    token = _log.set(log)
    try:
        yield
    except UserError as error:  # the caller shows it
        log.write(f"error: {error}")
        raise
    finally:
        _log.reset(token)


def write_line(line: str) -> None:
    """Write a line that was said, where what is said is written down."""
    if (log := _log.get()) is not None:
        log.write(line)


@contextmanager
def heard(is_quiet: bool = False) -> Iterator[tuple[int, int]]:
    """Yield descriptors for the output and the errors of a step.

    Where what is said is written down, this process says on ``sys`` what it hears there: so a notebook shows it, whose
    cells have no descriptors, and a terminal remains one to the step. Else they are those of this process.

    Args:
        is_quiet: Whether the output is thrown away.
    """
    with ExitStack() as ends:
        nowhere = ends.enter_context(open(os.devnull, "w")).fileno() if is_quiet else None
        out = ends.enter_context(_passed_on(sys.stdout, 1)) if nowhere is None else nowhere
        yield out, ends.enter_context(_passed_on(sys.stderr, 2))


@contextmanager
def _passed_on(stream: TextIO, usual: int) -> Iterator[int]:
    if (log := _log.get()) is None:
        yield usual
        return
    hears, says = _open(stream)
    thread = threading.Thread(target=_pass_on, args=(hears, stream, log), daemon=True)
    thread.start()
    try:
        yield says
    finally:
        os.close(says)
        thread.join(_PATIENCE)


def _open(stream: TextIO) -> tuple[int, int]:
    """A pipe, or a terminal of the same size where the stream is one: the end that hears, and the one that says."""
    if not stream.isatty():
        return os.pipe()
    import termios  # which not every system has
    import tty

    hears, says = os.openpty()
    tty.setraw(says)
    termios.tcsetwinsize(says, termios.tcgetwinsize(stream.fileno()))
    return hears, says


def _pass_on(hears: int, stream: TextIO, log: Log) -> None:
    decoder, line = codecs.getincrementaldecoder("utf-8")("replace"), ""
    while content := _read(hears):
        text = decoder.decode(content)
        stream.write(text)
        stream.flush()
        *lines, line = (line + text).split("\n")
        for whole in lines:
            log.write(whole)
        line = line[max(line.rfind("\r", 0, -1), 0) :]
    if line:
        log.write(line)
    os.close(hears)


def _read(hears: int) -> bytes:
    try:
        return os.read(hears, 65536)
    except OSError:  # a terminal whose last speaker is gone
        return b""
