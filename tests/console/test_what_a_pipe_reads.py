"""What a training and a sampling tell in a pipe or in a job's log: lines of this project, and nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny_model import write_corpus, write_model

ROOT = Path(__file__).resolve().parents[2]
#: Every line of a fit and of a predict is one of these.
OURS = (
    r"PRIVATE, budget 'default': target ε = \S+ at δ = \S+(; spent so far ε = \S+)?",
    r"  for one utterance more or less; N = \d+, σ = \S+, \d+ steps of ~\d+",
    r"(warning|note): delta \S+ is large, .*",
    r"one_stage \d+/\d+ steps · ε \d\.\d\d of 8 · \d+:\d\d left",
    r"model: \S+/one_stage/checkpoints/last\.ckpt",
    r"all that was spent: python cli\.py ledger \S+",
    r"next: python cli\.py predict --config \S+ .*",
    r"samples \d+/\d+ samples · \S+ a second · \d+:\d\d left",
    r"\S+/synthetic\.jsonl: wrote \d samples?, \S+ a second\..*",
    r"warning: \S+/synthetic\.jsonl: \d+% of \d+ texts were cut off at 4 tokens, .*",
)


def lines_of(words: list[str], folder: Path) -> list[str]:
    """What a command says, whose every line must be known."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "WANDB_MODE": "offline",
    }
    environment.pop("DOPPEL_RUN", None)
    done = subprocess.run(
        [sys.executable, str(ROOT / "cli.py"), *words], cwd=ROOT, env=environment, capture_output=True, check=False
    )
    told = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, told
    assert "\r" not in told and "\x1b" not in told
    lines = told.splitlines()
    assert [line for line in lines if not any(re.fullmatch(pattern, line) for pattern in OURS)] == []
    return lines


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model and its turns."""
    folder = tmp_path_factory.mktemp("pipe")
    write_model(folder / "model")
    write_corpus(folder / "turns.jsonl")
    return folder


@pytest.mark.slow
def test_a_training_and_a_sampling_tell_lines_of_ours_alone(place: Path) -> None:
    stage = place / "run" / "one_stage"
    model, data = place / "model", place / "turns.jsonl"
    fit = ["fit", "--config", "configs/utterance_lm.yaml", f"--model.base_model={model}"]
    fit += [
        "--data=datamodules.dialogue_data_module.DialogueDataModule",
        f"--data.train_path={data}",
        "--data.batch_size=10",
    ]
    fit += ["--data.unit=utterance"]
    fit += ["--privacy.target_epsilon=8", "--trainer.max_epochs=2", "--trainer.accelerator=cpu", f"--run_dir={stage}"]
    lines = lines_of(fit, place)
    assert sum(" steps · ε " in line for line in lines) >= 1
    assert lines[-1].startswith("next: ")
    predict = ["predict", "--config", str(stage / "config.yaml"), "--config", "configs/overlays/sample.yaml"]
    predict += ["--ckpt_path", str(stage / "checkpoints" / "last.ckpt"), f"--run_dir={place / 'run' / 'samples'}"]
    predict += [f"--trainer.callbacks.init_args.output_path={place / 'run' / 'synthetic.jsonl'}"]
    predict += ["--data.num_samples=6", "--model.sampling.max_new_tokens=4", "--model.sampling.redraws=null"]
    lines = lines_of(predict, place)
    assert sum("6/6 samples · " in line for line in lines) == 1
