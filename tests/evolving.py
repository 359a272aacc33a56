"""Small evolutions for tests: a private file, an encoder of a few words, and runs whose steps are in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import yaml

import cli
from commands.privacy import evolve
from commands.run import launch
from commands.run.execution.slurm import load_site
from commands.run.experiment.experiment import load
from commands.run_folder.manifest_writer import enter
from doppel.grammar import generate
from doppel.privacy.ledger import Ledger

WORDS = (
    "weather",
    "rain",
    "meeting",
    "lunch",
    "cancel",
    "delete",
    "manager",
    "who",
    "tomorrow",
    "set",
    "create",
    "answer",
)
#: In every private text, and in nothing that anybody may read.
SECRET = "zanzibarquux"


def embed(texts: Sequence[str], encoder: str = "", independent: bool = False, keep: object = None) -> np.ndarray:
    """Which of some words a text has, and how long it is."""
    assert independent or keep is not None, "candidates of all rounds are read again by a step that goes on"
    rows = [[*(float(word in text.lower()) for word in WORDS), len(text) / 200, 0.1] for text in texts]
    vectors = np.array(rows, dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@contextmanager
def words_alone() -> Iterator[None]:
    """Texts are embedded by these words, so that no encoder is loaded."""
    with mock.patch.object(evolve, "embed", embed), mock.patch.object(evolve, "form_of", str):
        yield


def write_private(folder: Path, num: int = 80) -> Path:
    """Rows of the grammar with a secret, two of each user, and labels."""
    turns = list(generate(num, 3))
    rows = [
        {
            "utterance": f"{turn.utterance} {SECRET}{i}",
            "unit": f"{SECRET}-u{i // 2}",
            "label": turn.domain,
            "stars": i % 3 + 1,
        }
        for i, turn in enumerate(turns)
    ]
    path = folder / "private.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def call(
    folder: Path,
    private: Path,
    *more: str,
    data: dict[str, Any] | None = None,
    privacy: dict[str, Any] | None = None,
    **settings: Any,
) -> int:
    """``evolve`` in ``folder/evolution``, of two rounds at ε = 8 unless it says otherwise."""
    given = {"target_epsilon": 8.0, "delta": 1e-5, "scope": "evolution", **(privacy or {})}
    words = [
        "step",
        "evolve",
        str(folder / "evolution"),
        "--out",
        str(folder / "evolution/samples.jsonl"),
        "--num-samples",
        "12",
    ]
    words += ["--data", json.dumps({"train_path": str(private), "unit": "user", **(data or {})})]
    words += ["--settings", json.dumps({"generator": "grammar", "rounds": 2, "variations": 2, **settings})]
    with words_alone():
        return cli.main([*words, "--privacy", json.dumps(given), *more])


def write_rows(folder: Path, private: Path, *more: str) -> Path:
    """Rows of attributes that the scope of the votes has paid for, at ε = 2 of its 8."""
    (folder / "schema.yaml").write_text("stars: [1, 2, 3]\nlabel: [calendar, weather, people]\n")
    words = ["metadata", str(private), "--out", str(folder / "rows" / "rows.csv"), "--num-rows", "6", "--epsilon", "2"]
    words += ["--delta", "1e-5", "--target-epsilon", "8", "--scope", "evolution", "--method", "independent"]
    words += ["--ledger", str(folder / "ledger.jsonl"), "--schema", str(folder / "schema.yaml"), "--unit", "user"]
    assert cli.main([*words, *more]) == 0
    return folder / "rows" / "rows.csv"


def spent(folder: Path, stage: str = "votes") -> int:
    """Steps of a stage on file."""
    path = folder / "ledger.jsonl"
    lines = [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []
    return sum(line["type"] == "spend" and line["mechanism"].endswith(stage) for line in lines)


def released(folder: Path, scope: str = "evolution") -> list[dict[str, Any]]:
    """The numbers that the ledger holds of the sizes of labels and of the rounds of votes, in their order."""
    ledger = Ledger(folder / "ledger.jsonl")
    made = [own for stage in ("histogram", "votes") for own in ledger.releases(f"{scope}/{stage}")]
    return [dict(own.content) for own in made if own.content is not None]


def samples(folder: Path) -> list[str]:
    """Texts of the samples."""
    lines = (folder / "evolution/samples.jsonl").read_bytes().splitlines()
    return [json.loads(line)["utterance"] for line in lines]


def everything(folder: Path) -> str:
    """All that lies in a folder, as text."""
    return "\n".join(path.read_text(errors="replace") for path in sorted(folder.rglob("*")) if path.is_file())


def make_run(folder: Path, **fields: Any) -> Path:
    """A finished run of the system, without metrics; its folder."""
    private = write_private(folder)
    experiment = {
        "systems": ["evolution"],
        "num_samples": 12,
        "data": {"train_path": str(private), "unit": "user"},
        "evolution": {"generator": "grammar", "rounds": 2, "variations": 2},
        "privacy": {"delta": 1e-5},
        **fields,
    }
    (folder / "mine.yaml").write_text(yaml.safe_dump(experiment))
    run = folder / "run"
    work = launch.begin(load(folder / "mine.yaml"), run, load_site(None, {}))
    launch.write(work, overwrite=True)
    for step in work.steps[:-1]:
        with words_alone():
            assert cli.main(list(step.words(run))) == 0, step.name
        enter(run, step.name)
        (run / ".done").mkdir(exist_ok=True)
        (run / ".done" / step.name).write_text("1\n")
    return run
