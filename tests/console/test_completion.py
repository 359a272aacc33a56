"""The completion script completes commands, options of tools, and options of Lightning's commands."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import cli

COMPLETE = r"""
source "$1"; function=$(complete -p doppel | sed 's/.*-F \([^ ]*\).*/\1/')
COMP_WORDS=(doppel "${@:2}"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
$function doppel "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"
echo "${COMPREPLY[@]}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_and_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", "bash"]) == 0
    script = tmp_path / "doppel.bash"
    script.write_text(capsys.readouterr().out)

    def completed(*words: str) -> set[str]:
        command = ["bash", "-c", COMPLETE, "bash", str(script), *words]
        return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())

    assert completed("") >= {*cli.COMMANDS}
    assert completed("pla") == {"plan"}
    assert completed("fit", "--trainer.max_ep") == {"--trainer.max_epochs"}
    assert completed("plan", "--acc") == {"--accountant"}
