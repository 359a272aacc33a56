"""Lines on the console, at once."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from doppel.console.heard import write_line

#: Seconds between the lines of what has no bar of its own.
_PULSE = 60.0


def say(line: str, *, is_error: bool = False) -> None:
    """Print a line now, also where the output goes to a file that a job is writing; a run writes it down, too."""
    stream = sys.stderr if is_error else sys.stdout
    stream.write(f"{line}\n")
    stream.flush()
    write_line(line)


def confirm(question: str) -> bool:
    """Ask whoever sits at a terminal; where nobody does, the answer is yes."""
    if not sys.stdin.isatty():
        return True
    say(f"{question} [y/N]")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def program() -> str:
    """Return how this interpreter is called again, also without an active environment: ``.venv/bin/python cli.py``."""
    found = shutil.which("python")
    if found is not None and os.path.abspath(found) == os.path.abspath(sys.executable):
        return "python cli.py"
    near = os.path.relpath(sys.executable)
    return f"{sys.executable if near.startswith(os.pardir) else near} cli.py"


@contextmanager
def telling_the_time(name: str) -> Iterator[None]:
    """Say every minute that a step goes on: a bar would tell how many private texts it has read, the time does not."""
    ended, begin = threading.Event(), time.time()

    def tell() -> None:
        while not ended.wait(_PULSE):
            say(f"   {name}: {minutes(time.time() - begin)} so far")

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def minutes(seconds: float) -> str:
    """Format a duration for people."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
