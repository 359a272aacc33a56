"""Doppel's one entry point.

    python cli.py fit|validate|test|predict --config …    training and sampling (LightningCLI)
    python cli.py audit --config …                        attack such a training, with its configs
    python cli.py plan|ledger|evaluate|…                  tools that train nothing

``python cli.py COMMAND --help`` explains each.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from doppel.errors import UserError

#: Tools that train nothing: name, module with ``add_arguments(parser)`` and ``run(args)``.
TOOLS = {
    "plan": "commands.plan",
    "ledger": "commands.ledger",
    "evaluate": "commands.evaluation.evaluate",
    "parser-metrics": "commands.evaluation.parser_metrics",
    "report": "commands.results.report",
    "sync": "commands.sync",
    "completion": "commands.completion",
    "histogram": "commands.privacy.histogram",
    "results": "commands.results.results",
    "select": "commands.evaluation.select",
    "download": "commands.download",
    "tokenizer": "commands.tokenizer",
    "partition": "commands.partition",
    "upweight": "commands.upweight",
}
TRAINER_COMMANDS = ("fit", "validate", "test", "predict")


def _overview() -> str:
    lines = [__doc__.strip() if __doc__ else "", "", "training and sampling:"]
    lines += [f"  {name:14s} Lightning's `{name}` on a model, a data module and a trainer" for name in TRAINER_COMMANDS]
    lines.append("  audit          trains on a copy of the data with canaries and bounds epsilon from below")
    lines += ["", "tools:"]
    for name, module in TOOLS.items():
        summary = (importlib.import_module(module).__doc__ or "").strip().splitlines()[0]
        lines.append(f"  {name:14s} {summary}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Arguments without the program's name; ``sys.argv`` by default.

    Returns:
        Exit status: 0, 2 after a one-line error that the user can mend, 1 if an audit contradicts its claim.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    os.umask(0o077)  # run folders and caches hold private text: readable by their owner alone
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        if not arguments or arguments[0] in ("-h", "--help"):
            sys.stdout.write(_overview() + "\n")
        elif arguments[0] in TOOLS:
            module = importlib.import_module(TOOLS[arguments[0]])
            parser = argparse.ArgumentParser(prog=f"cli.py {arguments[0]}", description=module.__doc__)
            module.add_arguments(parser)
            module.run(parser.parse_args(arguments[1:]))
        elif arguments[0] in TRAINER_COMMANDS:
            from lightning_modules.lightning_cli import DoppelCLI

            sys.argv = [sys.argv[0], *arguments]  # Lightning re-runs this command line on the other ranks
            DoppelCLI()
        elif arguments[0] == "audit":
            from commands.audit import main as audit

            sys.argv = [sys.argv[0], *arguments]
            return audit()
        else:
            raise UserError(
                f"there is no command {arguments[0]!r}: use one of {', '.join((*TRAINER_COMMANDS, 'audit', *TOOLS))}"
            )
    except (UserError, ValueError) as error:
        mendable = error if isinstance(error, UserError) else error.__cause__  # jsonargparse wraps what __init__ raises
        if not isinstance(mendable, UserError):
            raise
        sys.stderr.write(f"error: {mendable}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
