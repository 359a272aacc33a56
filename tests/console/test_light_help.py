"""Help is there at once: no command imports PyTorch, Lightning or transformers to explain itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import cli
from doppel.console.command import load, reads_words

ROOT = Path(__file__).parents[2]
GROUPS = cli.COMMANDS | cli.MORE
TOOLS = [name for group in GROUPS.values() for name, target in group.items() if not reads_words(load(target))]
#: Prints, for each help in one process, its number of lines and what has been imported by its end.
HELP = """
import contextlib, io, json, sys
import cli
for words in json.loads(sys.argv[1]):
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as told:
        cli.main(words)
    print(json.dumps([len(told.getvalue().splitlines()), *{"torch", "lightning", "transformers"} & set(sys.modules)]))
"""


def test_help_imports_nothing_heavy() -> None:
    words = [["--help", "all"], *([name, "--help"] for name in TOOLS)]
    command = [sys.executable, "-c", HELP, json.dumps(words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    for own, line in zip(words, done.stdout.splitlines(), strict=True):
        num_lines, *heavy = json.loads(line)
        assert num_lines > 3 and not heavy, (own, num_lines, heavy)
