"""Ctrl-C is one line, at whatever moment it comes; imports nothing that takes time."""

from __future__ import annotations

import os
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
    training, takes the place of this one.

    Returns:
        Exit status.
    """
    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else whoever started us ignores Ctrl-C
    if is_ours:
        signal.signal(signal.SIGINT, _interrupted)
    try:
        return main()
    except KeyboardInterrupt:
        sys.stderr.write(_LINE.decode())
        return 130
    finally:
        if is_ours:  # while Python tidies up nothing is left to save
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _interrupted(number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTS:
            os.write(2, _LINE)
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt
