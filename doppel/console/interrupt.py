"""Ctrl-C is one line, at whatever moment it comes, and a reader who has seen enough is none; imports nothing heavy."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable
from types import FrameType

_LINE = b"interrupted\n"
_IMPORTS = "<frozen importlib._bootstrap>"


def one_line(main: Callable[[], int]) -> int:
    """Run the command of this process, which Ctrl-C ends with one line and status 130.

    During an import the process ends at once: packages such as NumPy catch the exception that Python raises, go on half
    imported and end in hundreds of lines of another error. Nothing is lost then that a kill would not lose too. At any
    other time a command gets ``KeyboardInterrupt`` as ever, and saves what it has; a later handler, such as that of a
    training, takes the place of this one. Where whoever reads the output goes away, as ``head`` does, it ends quietly.

    Returns:
        Exit status.
    """
    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else whoever started us ignores Ctrl-C
    if is_ours:
        signal.signal(signal.SIGINT, _interrupted)
    try:
        status = main()
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        sys.stderr.write(_LINE.decode())
        return 130
    except BrokenPipeError:
        if not _has_no_reader():
            raise
        return 128 + signal.SIGPIPE
    finally:
        if is_ours:  # while Python tidies up nothing is left to save
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _has_no_reader() -> bool:
    """Whether nobody reads the output of this process any more; nothing is written to it then."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    is_gone = any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    if is_gone:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return is_gone


def _interrupted(number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTS:
            os.write(2, _LINE)
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt
