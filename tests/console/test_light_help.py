"""Help is there at once: no command imports PyTorch, Lightning or transformers to explain itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import cli
from doppel.console.command import load, reads_words

ROOT = Path(__file__).parents[2]
GROUPS = cli.COMMANDS | cli.MORE
TOOLS = [name for group in GROUPS.values() for name, target in group.items() if not reads_words(load(target))]
HELP = """
import contextlib, sys
import cli
with contextlib.suppress(SystemExit):
    cli.main(sys.argv[1:])
sys.stderr.write(" ".join({"torch", "lightning", "transformers"} & set(sys.modules)))
"""


@pytest.mark.parametrize(
    "words", [["--help", "all"], *([name, "--help"] for name in TOOLS)], ids=lambda words: words[0]
)
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", HELP, *words], cwd=ROOT, capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) > 3
    assert done.stderr == ""
