"""A finished run of a tiny model with four systems, whose steps have run in the tests' own process."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import yaml
from numpy.typing import NDArray
from tiny_model import PAIRS

import cli
from commands.privacy import feature_extractors
from commands.run import launch
from commands.run.execution import execute
from commands.run.execution.slurm import load_site
from commands.run.experiment.experiment import load
from commands.run_folder.manifest_writer import enter

LABELS = ("calendar", "weather", "talk")
#: Settings of p(y). At a larger rate the noise now and then teaches a tiny model never to end a tree; as it is, one
#: tree in eleven ends.
TREES = {
    "model": {"optimizer": {"lr": 1e-4}},
    "sampling": {"max_new_tokens": 40, "redraws": 60},
}


def write_run(folder: Path, tiny_model: str) -> Path:
    """Train and sample ``one_stage``, ``labels``, ``topics`` and ``two_stage``; the run folder."""
    rows = [
        {"utterance": f"{utterance} {i}", "parse": parse, "label": LABELS[i % 3]}
        for i, (utterance, parse) in enumerate(PAIRS * 10)
    ]
    (folder / "private.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "labels.txt").write_text("\n".join(LABELS) + "\n")
    (folder / "public.jsonl").write_text("".join(json.dumps({"parse": parse}) + "\n" for _, parse in PAIRS))
    trees = {**TREES, "sampling": {**TREES["sampling"], "grammar": [str(folder / "public.jsonl")]}}
    systems = ["one_stage", "labels", "topics", "two_stage"]
    experiment = {
        "systems": systems,
        "num_samples": 12,
        "labels": str(folder / "labels.txt"),
        "candidates": 1,  # which draws no more than are kept
        "topics": {"num_topics": 2, "noise_multiplier": 2.0, "oversample": 2},
        "epochs": dict.fromkeys(("one_stage", "parse_tree", "parse2utterance"), 1),
        "data": {"train_path": str(folder / "private.jsonl"), "batch_size": 20},
        "model": {"base_model": tiny_model, "optimizer": {"lr": 0.01}},
        "sampling": {"max_new_tokens": 8, "redraws": None},
        "trainer": {"accelerator": "cpu", "logger": False, "enable_progress_bar": False},
        "privacy": {"accountant": "rdp"},
        "stages": {
            "labels": {"privacy": {"histogram_noise_multiplier": 2.0}},
            "parse_tree": trees,
        },
    }
    run = folder / "run"
    (folder / "mine.yaml").write_text(yaml.safe_dump(experiment))
    work = launch.begin(load(folder / "mine.yaml"), run, load_site(None, {}))
    launch.write(work, overwrite=True)
    for step in work.steps[:-1]:  # the page is made by those who test it
        assert step_here("", run / ".done" / step.name, ["python", "cli.py", *step.words(run)]) == 0, step.name
    assert cli.main(["verify", str(run)]) == 0
    return run


def step_here(kind: str, mark: Path, command: Sequence[str], *_: object) -> int:
    """As ``run_step`` does, in this process."""
    if mark.exists():
        return 0
    with mock.patch.multiple(feature_extractors, embed=embed, form_of=str):
        status = cli.main(list(command[2:]))
    if status == 0:
        enter(mark.parent.parent, mark.name)
        mark.parent.mkdir(exist_ok=True)
        mark.write_text("1\n")
    return status


def embed(texts: Sequence[str], encoder: str, independent: bool = False, keep: object = None) -> NDArray[np.float32]:
    """Two kinds of texts, by nothing that they mean; each a little different."""
    found = np.zeros((len(texts), 3), dtype=np.float32)
    for row, text in zip(found, texts, strict=True):
        digest = hashlib.sha256(text.encode()).digest()
        row[:] = (digest[0] % 2, 1 - digest[0] % 2, digest[1] / 2550)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def draw(run: Path, *words: str) -> int:
    """``python cli.py sample RUN WORDS`` in this process."""
    with mock.patch.object(execute, "run_step", step_here), mock.patch.dict(os.environ):
        return cli.main(["sample", str(run), *words])


@contextmanager
def away(private: Path) -> Iterator[None]:
    """A private file is not there: whoever reads it fails."""
    hidden = private.rename(private.with_suffix(".away"))
    try:
        yield
    finally:
        hidden.rename(private)
