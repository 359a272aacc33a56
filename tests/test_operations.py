"""Each command of docs/operations.md is run, in the order of the page: one that nobody has run here fails."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest
from markdown_blocks import ROOT, commands, words
from run_folders import make_run, sample
from tiny_model import PAIRS

import cli
from commands.run import launch
from commands.run.execution.slurm import load_site
from commands.run.experiment.experiment import load, shipped
from commands.run.preflight.sources import Read

PAGE = ROOT / "docs" / "operations.md"
#: Beginnings of commands that need a network, an account or a program that this project does not install, and which.
ELSEWHERE = {
    "python3.11 -m venv": "a network",
    "pip install": "a network",
    "touch .venv/.installed": "what pip installs",
    "cosign": "cosign",
    "wandb login": "an account",
    "wandb sync": "an account",
}
TINY = ["--model.init_args.base_model=MODEL", "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"]
#: Beginnings of the others, and what they are given on top to be small.
HERE: dict[str, list[str]] = {
    "grep -vE": [],
    "cp slurm/site.example.yaml slurm/site.yaml": [],
    "python cli.py run": [],
    "python cli.py status": [],
    "python cli.py cancel": [],
    "python cli.py report": [],
    "tail -f": [],
    "python cli.py fit": [*TINY, "--data.init_args.batch_size", "20"],
    "python cli.py predict": [
        *(*TINY, "--data.init_args.num_samples", "4", "--model.init_args.sampling.max_new_tokens", "40"),
        *("--model.init_args.sampling.redraws", "null"),  # what so short a training writes is kept as it is
    ],
    "python cli.py evaluate": ["--featurizer", "MODEL"],
    "ssh-keygen -Y": [],
    "gpg": [],
    "sha256sum": [],
    "python -c": [],
}


def _begins(command: str) -> list[str]:
    return [start for start in (*ELSEWHERE, *HERE) if command.startswith(start)]


def test_each_command_of_the_page_has_a_run() -> None:
    found = {command: _begins(command) for command in commands(PAGE)}
    assert {command: starts for command, starts in found.items() if len(starts) != 1} == {}
    assert {start for starts in found.values() for start in starts} == {*ELSEWHERE, *HERE}, "the page has it no longer"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder from which relative paths of the page lead to files, with an sbatch that takes every job."""
    for name in ("configs", "models", "constraints.txt"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "slurm", tmp_path / "slurm", ignore=shutil.ignore_patterns("site.yaml"))
    for name in (".venv", ".ssh", "bin", ".gnupg"):
        (tmp_path / name).mkdir(mode=0o700)
    rows = [{"utterance": f"{text} {i}", "parse": tree} for i, (text, tree) in enumerate(PAIRS * 10)]
    for name in ("private", "public"):
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    programs = {
        "python": f'exec {sys.executable} "$@"',
        "sbatch": '[ "$1" != --test-only ] || exit 0; echo "$@" >> "$CALLS"; echo $((100 + $(wc -l < "$CALLS")))',
        "squeue": "echo '101|PENDING|0|Priority|'",
        "scancel": "exit 0",
    }
    for name, text in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "sbatch.log"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DOPPEL_DATA", str(tmp_path))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("commands.run.preflight.preflight.read_sources", lambda experiment: Read([]))
    for check in ("check_files", "check_models"):  # SMCalFlow and GPT-2 are not here
        monkeypatch.setattr(f"commands.run.preflight.preflight.{check}", lambda plan: None)
    return tmp_path


def _before(command: str, checkout: Path, tiny_model: str) -> None:
    """Make what a command reads, if it is the first to read it."""
    quickstart = checkout / "runs/quickstart/two_stage/parse_tree"
    if "runs/quickstart" in command and not quickstart.exists():
        changes = {"data.train_path": "embedded:train?num=60", "data.batch_size": 20, "model.base_model": tiny_model}
        changes |= {"epochs.parse_tree": 1, "epochs.parse2utterance": 1}
        work = launch.begin(load(shipped("quickstart"), changes), checkout / "runs/quickstart", load_site(None, {}))
        launch.write(work, overwrite=True)
        (trees,) = (step for step in work.steps if step.name == "public_trees")
        assert cli.main(list(trees.words(checkout / "runs/quickstart"))) == 0
        quickstart.mkdir(parents=True)
        shutil.copy(checkout / "runs/quickstart/configs/two_stage-parse_tree.yaml", quickstart / "config.yaml")
    if command.startswith("python cli.py report"):
        shutil.rmtree(checkout / "runs/table1")
        for seed in (1, 2):
            make_run(checkout / f"runs/table1/epsilon=3,seed={seed}", seed=seed)
    if "privacy-card" in command and not (checkout / ".ssh/id_ed25519").exists():
        shutil.rmtree(checkout / "runs/mine")
        make_run(checkout / "runs/mine", metrics={"two_stage": {}})
        sample(checkout / "runs/mine", "two_stage")
        assert cli.main(["verify", "runs/mine"]) == 0
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", ".ssh/id_ed25519"], check=True)
        key = (checkout / ".ssh/id_ed25519.pub").read_text()
        (checkout / "runs/mine/allowed_signers").write_text(f"you@example.org {key}")
        made = ["gpg", "--batch", "--quiet", "--passphrase", "", "--quick-generate-key", "you@example.org"]
        if shutil.which("gpg") is not None:
            subprocess.run(made, check=True, capture_output=True)


@pytest.mark.slow
def test_each_command_of_the_page_runs(checkout: Path, tiny_model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In their order, since later ones read what earlier ones wrote; trainings of a tiny model on sixty rows."""
    for command in commands(PAGE):
        (start,) = _begins(command)
        if start in ELSEWHERE or shutil.which(words(command)[0]) is None:  # a machine without gpg
            continue
        _before(command, checkout, tiny_model)
        more = [word.replace("MODEL", tiny_model) for word in HERE[start]]
        if command.startswith("python cli.py"):
            status = cli.main([*words(command)[2:], *more])
        elif start == "tail -f":  # no job has run here: one of them would write there
            logs = re.findall(r"--output=(\S+)", (checkout / "sbatch.log").read_text())
            pattern = str(checkout / words(command)[-1])
            status = 0 if any(fnmatch(log.replace("%j", "101"), pattern) for log in logs) else 1
        else:
            at_recipients = start == "sha256sum" or "-Y verify" in command
            folder = checkout / "runs/mine" if at_recipients else checkout
            status = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=folder).returncode
        assert status == 0, f"{command}: {capsys.readouterr().err[-2000:]}"
    assert (checkout / "table1.csv").is_file() and (checkout / "metrics.json").is_file()
    assert len((checkout / "runs/both-samples/synthetic.jsonl").read_text().splitlines()) == 4
