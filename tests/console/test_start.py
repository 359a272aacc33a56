"""A command starts at once: it imports what it needs alone, a typo waits for nothing, and Ctrl-C is one line."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from commands.lightning.cli import DoppelCLI
from commands.lightning.options import OPTIONS, PRIVACY, TRAINER, check_options
from doppel.console.say import program
from doppel.errors import UserError
from doppel.privacy.spec import PrivacyArguments

ROOT = Path(__file__).parents[2]
HEAVY = "torch lightning transformers opacus sklearn torchmetrics wandb"
RUN = """
import sys
import cli
heavy = set(sys.argv.pop(1).split())
status = cli.main(sys.argv[1:])
sys.exit(f"status {status}, imported {sorted(heavy & set(sys.modules))}")
"""


def started(*words: str) -> str:
    done = subprocess.run([sys.executable, "-c", RUN, HEAVY, *words], cwd=ROOT, capture_output=True, text=True)
    return done.stderr


@pytest.mark.parametrize("command", ["ledger", "verify"])
def test_who_reads_a_run_waits_for_no_training_library(command: str, own_private_run: Path) -> None:
    status = 0 if command == "ledger" else "[01]"
    error = started(command, str(own_private_run))

    assert re.search(rf"status {status}, imported \[\]", error), error


@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        (["fit", "--modle", "x"], "model"),
        (["predict", "--cpkt_path=x"], "ckpt_path"),
        (["test", "--trainer.max_epoch=1"], "trainer.max_epochs"),
        (["fit", "--privacy.target_epslon", "3"], "privacy.target_epsilon"),
        (["run", "configs/experiments/quickstart.yaml", "/nowhere", "--sett", "x"], "set"),
    ],
    ids=["fit", "predict", "test", "privacy", "run"],
)
def test_a_typo_is_found_before_anything_heavy_is_imported(words: list[str], nearest: str) -> None:
    error = started(*words)
    assert f"did you mean '{nearest}'?" in error
    assert error.endswith("status 2, imported []\n")


def test_the_names_of_the_options_are_those_of_the_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, set[str]] = {}

    def parse_arguments(cli: DoppelCLI, *_: object) -> None:
        for command, parser in cli._subcommand_parsers.items():
            options = {option for action in parser._actions for option in action.option_strings}
            names[command] = {option[2:] for option in options if option.startswith("--")}
        raise UserError("read")

    monkeypatch.setattr(DoppelCLI, "parse_arguments", parse_arguments)
    with pytest.raises(UserError, match="read"):
        DoppelCLI(["fit"])
    assert set(names) == set(OPTIONS)
    for command, options in names.items():
        assert {name.partition(".")[0] for name in options} == set(OPTIONS[command])
        below = {name.split(".")[1].removesuffix("+") for name in options if name.startswith("trainer.")}
        assert below - {"help"} == set(TRAINER)
        assert {field.name for field in dataclasses.fields(PrivacyArguments)} == set(PRIVACY)
        check_options(command, [f"--{name}=1" for name in options])


@pytest.mark.parametrize("after", [0.3, 0.6, 1.2])
def test_ctrl_c_while_importing_is_one_line(after: float) -> None:
    words = [sys.executable, "cli.py", "fit", "--model=x"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    heard = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # in the background too
    process = subprocess.Popen(words, cwd=ROOT, preexec_fn=heard, **pipes)
    time.sleep(after)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate()
    assert (process.returncode, error) == (130, "interrupted\n")


@pytest.mark.parametrize("path", ["", str(Path(sys.executable).parent)])
def test_the_command_that_a_run_prints_calls_this_interpreter_with_or_without_an_environment(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", path)
    python, _ = program().split()
    found = shutil.which(python)
    assert found is not None and os.path.abspath(found) == os.path.abspath(sys.executable)
