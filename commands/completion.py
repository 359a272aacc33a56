"""Print a script that completes commands and options in a shell."""

from __future__ import annotations

import argparse
import importlib
import inspect
import sys
from typing import Any, NoReturn

from doppel.console.command import command_parser
from doppel.console.dispatch import load

SHELLS = ("bash", "zsh", "tcsh")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``doppel completion``."""
    parser.add_argument("shell", choices=SHELLS, help="which shell")
    parser.epilog = (
        "bash: doppel completion bash > ~/.local/share/bash-completion/completions/doppel; zsh: doppel completion zsh "
        "> _doppel in a folder of $fpath. The script is static: make it anew for a new version."
    )


def run(args: argparse.Namespace) -> None:
    """Print the script for the installed command ``doppel``."""
    parser = _whole_parser()
    parser.prog = "doppel"
    print(parser.get_completion_script(f"shtab-{args.shell}"))


class _Built(Exception):
    """Carries the parser out of the command line before it reads any argument."""

    def __init__(self, parser: Any) -> None:
        self.parser = parser


def _whole_parser() -> Any:
    """The parser of Lightning's commands, with the tools beside them."""
    import jsonargparse

    from cli import COMMANDS
    from commands.launch.lightning_cli import DoppelCLI

    class ParserAlone(DoppelCLI):
        def parse_arguments(self, parser: Any, args: Any) -> NoReturn:
            raise _Built(parser)

    arguments, sys.argv = sys.argv, ["doppel", "fit"]
    try:
        ParserAlone()
    except _Built as built:
        parser = built.parser
    finally:
        sys.argv = arguments
    for name, target in COMMANDS.items():
        if ":" not in target:
            tool = jsonargparse.ArgumentParser(prog=f"doppel {name}")
            importlib.import_module(target).add_arguments(tool)
        elif list(inspect.signature(load(target)).parameters) != ["argv"]:
            tool = command_parser(load(target), f"doppel {name}")
        else:
            continue
        parser._subcommands_action.add_subcommand(name, tool)
    return parser
