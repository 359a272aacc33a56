"""The commands that train and sample."""

from __future__ import annotations

import argparse
import errno
import sys

from doppel.errors import UserError


def fit(argv: list[str]) -> None:
    """Train a model on data, privately with `privacy`: Lightning's `fit`."""
    _run("fit", argv)


def validate(argv: list[str]) -> None:
    """Evaluate a checkpoint on validation data: Lightning's `validate`."""
    _run("validate", argv)


def test(argv: list[str]) -> None:
    """Evaluate a checkpoint on test data: Lightning's `test`."""
    _run("test", argv)


def predict(argv: list[str]) -> None:
    """Write samples of a trained model, or trees of a trained parser: Lightning's `predict`."""
    _run("predict", argv)


def _run(command: str, argv: list[str]) -> None:
    from commands.lightning.own_code import check_own, find_here

    find_here()
    from commands.lightning.cli import DoppelCLI
    from commands.lightning.closing import close
    from commands.lightning.quiet import silence

    silence(command)
    check_own(argv)
    sys.argv = [sys.argv[0], command, *argv]  # Lightning re-runs this command line on the other ranks
    try:
        cli = DoppelCLI()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        words = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        words.add_argument("--run_dir", default=".")
        folder = words.parse_known_args(argv)[0].run_dir
        raise UserError(
            f"{folder} cannot be written to ({error.strerror}): free some space there and run again"
        ) from error
    if command == "fit":
        close(cli.trainer)
