"""Lines on the console, at once."""

from __future__ import annotations

import sys


def say(line: str) -> None:
    """Print a line now, also where the output goes to a file that a job is writing."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
