"""A machine that loses power, again and again: the command given again always ends with samples and a card."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from tiny_model import PAIRS

ROOT = Path(__file__).resolve().parents[3]
#: Steps of both stages; where a fast machine has paid all of them before the first kill, later ones wait for no more.
ALL = 30


@dataclass(frozen=True)
class Kill:
    """When all processes of a run die.

    Attributes:
        step: So many steps of the ledger are paid, of all stages together.
        then: And this mark of a step is there.
        seconds: And so many more have passed.
    """

    step: int
    then: str | None = None
    seconds: float = 0.0


def num_paid(run: Path) -> int:
    path = run / "ledger.jsonl"
    return path.read_bytes().count(b'"type": "spend"') if path.exists() else 0


def once(words: list[str], run: Path, kill: Kill | None = None) -> int | None:
    """Run a command to its end: its status; or until it is killed with all that it has started: None."""
    with (run.parent / f"{run.name}.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "cli.py", *words],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    step = 0 if kill is None else min(ALL, max(kill.step, num_paid(run) + 1 if kill.then is None else 0))
    while process.poll() is None:
        is_there = kill is not None and (kill.then is None or (run / ".done" / kill.then).is_file())
        if kill is not None and is_there and num_paid(run) >= step:
            time.sleep(kill.seconds)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return None
        time.sleep(0.01)
    return process.returncode


def small(folder: Path, tiny_model: str) -> tuple[list[str], int]:
    """An experiment of ten and twenty steps of a tiny model, and how many samples it writes."""
    rows = [{"utterance": f"{text} {i}", "parse": parse} for i, (text, parse) in enumerate(PAIRS * 10)]
    (folder / "private.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "public.jsonl").write_text("".join(json.dumps({"parse": parse}) + "\n" for _, parse in PAIRS))
    trees = {"max_new_tokens": 40, "redraws": 60, "grammar": [str(folder / "public.jsonl")]}
    experiment = {
        "systems": ["two_stage"],
        "num_samples": 6,
        "epochs": {"parse_tree": 1, "parse2utterance": 2},
        "data": {"train_path": str(folder / "private.jsonl"), "unit": "utterance", "batch_size": len(rows) // 10},
        "model": {"base_model": tiny_model, "optimizer": {"lr": 1e-4}},
        "sampling": {"max_new_tokens": 8, "redraws": None},
        "trainer": {"accelerator": "cpu", "logger": False},
        "privacy": {"accountant": "rdp"},
        "stages": {"parse_tree": {"sampling": trees}},
    }
    (folder / "small.yaml").write_text(yaml.safe_dump(experiment))
    return ["run", str(folder / "small.yaml")], 6


def last_two(chance: random.Random, seconds: float) -> list[Kill]:
    """Kills in the last two of thirty steps, and while samples are written."""
    ends = [Kill(ALL - 1, seconds=chance.uniform(0, seconds)), Kill(ALL, seconds=chance.uniform(0, seconds))]
    return [*ends, Kill(ALL, "two_stage-parse2utterance", chance.uniform(0, 10 * seconds))]


@pytest.mark.slow
@pytest.mark.parametrize("size", ["small", pytest.param("quickstart", marks=pytest.mark.hours)])
def test_killed_at_random_a_run_ends_with_samples_and_a_card(tmp_path: Path, tiny_model: str, size: str) -> None:
    """Five kills a run; at the size of the quickstart twenty, in four runs."""
    chance = random.Random(os.environ.get("DOPPEL_KILLS"))  # every time others, unless a seed is given
    for number in range(4 if size == "quickstart" else 1):
        run, seconds = tmp_path / f"run{number}", 3.0 if size == "quickstart" else 0.3
        if size == "small":
            words, num_samples = small(tmp_path, tiny_model)
        else:
            words, num_samples = ["run", "configs/experiments/quickstart.yaml", "--systems", "two_stage"], 300
        words = [*words[:2], str(run), "--local", *words[2:]]
        if number % 2 == 0:
            steps = sorted(chance.sample(range(1, ALL - 1), 2))
            kills = [*(Kill(step, seconds=chance.uniform(0, seconds)) for step in steps), *last_two(chance, seconds)]
        else:
            steps = sorted(chance.sample(range(1, ALL + 1), 5))
            kills = [Kill(step, seconds=chance.uniform(0, seconds)) for step in steps]
        statuses = [once(words, run, kill) for kill in kills]
        print(f"{run}: {kills} → {statuses}")  # noqa: T201
        assert set(statuses) <= {None, 0} and statuses.count(None) >= 4, (run.parent / f"{run.name}.log").read_text()
        assert once(words, run) == 0, (run.parent / f"{run.name}.log").read_text()[-4000:]
        assert len((run / "two_stage/samples.jsonl").read_bytes().splitlines()) == num_samples
        card = json.loads((run / "privacy_card.json").read_text())
        assert card["verified"], card["reasons"]
        assert card["budgets"]["two_stage"]["epsilon"] <= card["budgets"]["two_stage"]["target_epsilon"]
        assert {file["file"] for file in card["covered"]} >= {"two_stage/samples.jsonl"}
    assert once(["sample", str(run), "--num", "4"], run) == 0, (run.parent / f"{run.name}.log").read_text()[-4000:]
