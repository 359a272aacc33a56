"""A script that completes commands and options in a shell."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from jsonargparse import ArgumentParser, capture_parser

from doppel.console.command import CommandParser, command_parser, load, reads_words


def script(commands: Mapping[str, str], prog: str, shell: str) -> str:
    """The script for all commands.

    Args:
        commands: Name of each command and ``"module:function"``.
        prog: The program whose words are completed.
        shell: For which shell.
    """
    parser = CommandParser(prog=prog)
    subcommands = parser.add_subcommands()
    read_by: dict[str, ArgumentParser] = {}  # several commands of Lightning are subcommands of one parser
    for name, target in commands.items():
        function, module = load(target), target.partition(":")[0]
        if reads_words(function):
            if module not in read_by:
                words = sys.argv
                read_by[module] = capture_parser(function, [])
                sys.argv = words
            part = read_by[module]._subcommands_action._name_parser_map[name]  # type: ignore[union-attr]
        else:
            part = command_parser(function, f"{prog} {name}")
        subcommands.add_subcommand(name, part)
    return parser.get_completion_script(f"shtab-{shell}")
