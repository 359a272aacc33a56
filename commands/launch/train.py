"""The commands that train and sample."""

from __future__ import annotations

import sys


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
    from commands.launch.lightning_cli import DoppelCLI

    sys.argv = [sys.argv[0], command, *argv]  # Lightning re-runs this command line on the other ranks
    DoppelCLI()
