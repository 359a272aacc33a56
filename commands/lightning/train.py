"""The commands that train and sample."""

from __future__ import annotations

import argparse
import errno
import sys

from doppel.errors import UserError


def fit(argv: list[str]) -> None:
    """Train a model on data, privately with `privacy`: Lightning's `fit`.

    Example:
        python cli.py fit --config runs/quickstart/two_stage/parse_tree/config.yaml --run_dir runs/mine/parse_tree
    """
    _run("fit", argv)


def validate(argv: list[str]) -> None:
    """Evaluate a checkpoint on validation data: Lightning's `validate`.

    Example:
        python cli.py validate --config runs/quickstart/two_stage/parse_tree/config.yaml --ckpt_path last
    """
    _run("validate", argv)


def test(argv: list[str]) -> None:
    """Evaluate a checkpoint on test data: Lightning's `test`.

    Example:
        python cli.py test --config runs/quickstart/two_stage/parse_tree/config.yaml --ckpt_path last
    """
    _run("test", argv)


def predict(argv: list[str]) -> None:
    r"""Write samples of a trained model, or trees of a trained parser: Lightning's `predict`.

    Example:
        python cli.py predict --config configs/utterance_lm.yaml --config configs/overlays/sample.yaml \
            --ckpt_path runs/quickstart/one_stage/one_stage/checkpoints/last.ckpt
    """
    _run("predict", argv)


def _run(command: str, argv: list[str]) -> None:
    from commands.lightning.own_code import check_own, find_here

    find_here()
    from lightning.fabric.utilities.exceptions import MisconfigurationException

    from commands.lightning.cli import DoppelCLI
    from commands.lightning.next_steps import close
    from commands.lightning.quiet import silence

    silence(command)
    check_own(argv)
    sys.argv = [sys.argv[0], command, *argv]  # Lightning re-runs this command line on the other ranks
    try:
        cli = DoppelCLI(commands=(fit, validate, test, predict))
    except SystemExit as error:
        if isinstance(error.__context__, KeyboardInterrupt):  # which Lightning makes a failure without a word
            raise error.__context__ from None
        raise
    except MisconfigurationException as error:
        raise UserError(f"Lightning refuses this configuration: {' '.join(str(error).split())}") from error
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
