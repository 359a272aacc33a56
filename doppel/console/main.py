"""The entry point `doppel` of the installed library."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from doppel.console import interrupt

COMMANDS = {"Privacy": {"plan": "doppel.console.plan:plan", "ledger": "doppel.console.ledger:ledger"}}
ABOUT = """\
Doppel's library: clipping, accounting, the ledger, Lispress and metrics.

Training, sampling and experiments are `python cli.py COMMAND` in a checkout of the project."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Arguments without the program's name; ``sys.argv`` by default.

    Returns:
        Exit status: that of the command, or 2 after a one-line error that the user can mend.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    names = [name for group in COMMANDS.values() for name in group]
    if words and not words[0].startswith("-") and words[0] not in names:
        sys.stderr.write(
            f"error: the installed library has the commands {' and '.join(names)} alone: run `python cli.py "
            f"{words[0]}` in a checkout of the project\n"
        )
        return 2

    def command() -> int:
        from doppel.console import dispatch

        return dispatch.main(COMMANDS, ABOUT, "doppel", words)

    return interrupt.one_line(command) if argv is None else command()
