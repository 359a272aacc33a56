"""Whether a model that was trained on redacted text repeats the names and numbers that were said in it.

    python -m studies.redaction replay --runs runs/replay --out docs/results/replay.csv

The private rows are turns of the domain Services of Schema-Guided Dialogue, and among them made-up people who each say
a full name and a phone number in one row or in several. Some more people are never said: what stands of those in the
samples is chance. The small base is trained on these rows as they are, redacted, and with DP-SGD, by `python cli.py
run`; then it is counted of how many people the name, and the number, stands in a sample.

- `patterns` hides phone numbers and all words with a digit;
- `p = .3` hides the three tenths of the words of a row that tell most of its domain, by a ranker that learns from other
  turns of Services and Restaurants;
- `DP-SGD` protects all rows of a person together, with the ε of the run's ledger.

Each training is a run in a folder of its own under ``--runs``; the same command again goes on with what was cut short.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from commands.quality.frame import COLUMNS, read_csv, write_csv
from commands.run.experiment.experiment import shipped
from commands.run_folder.places import ROOT
from datamodules.reading.examples import read_examples
from doppel.files import read_json_lines, write_json_lines
from doppel.grammar.lexicon import words
from doppel.redaction.attack import replayed

#: Of the file, below --folder: which label is private, and what the ranker takes for safe.
FILE, SENSITIVE, SAFE = "sgd/train.dataflow_dialogues.jsonl.zip", "Services", "Restaurants"
#: Rows in which a person stands; nobody is told of those with none.
TIMES = (0, 1, 4, 16, 64)
#: Setting → the ε of its training, and what it sets.
SETTINGS: dict[str, tuple[str, tuple[str, ...]]] = {
    "as it is": ("inf", ()),
    "patterns": ("inf", ("redact={patterns: [phone, number]}",)),
    "p = .3": ("inf", ("redact={level: 0.3, sensitive: SENSITIVE, safe: SAFE}",)),
    "DP-SGD": ("8", ()),
}
_FORMS = (
    "Please put it down under {name}, my number is {number}.",
    "My name is {name} and you can call me at {number}.",
    "Book it for {name}, phone {number}, please.",
    "This is {name}. Text the time to {number}.",
)
_RANKED = 500


@dataclass(frozen=True)
class Person:
    """Made up; ``times`` is in how many rows this one stands."""

    name: str
    number: str
    times: int

    def rows(self, draw: random.Random) -> list[dict[str, str]]:
        """What this person says, with the name as the unit."""
        forms = [draw.choice(_FORMS) for _ in range(self.times)]
        return [{"text": form.format(name=self.name, number=self.number), "unit": self.name} for form in forms]


def main(argv: Sequence[str] | None = None) -> int:
    """Whether a model that was trained on redacted text repeats the names and numbers that were said in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(os.environ.get("DOPPEL_DATA", ".")), help="of the data")
    parser.add_argument("--runs", type=Path, required=True, help="folder of all runs")
    parser.add_argument("--out", type=Path, required=True, help="CSV file to write")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--num-rows", type=int, default=1500, help="private rows beside those of the made-up people")
    parser.add_argument("--num-people", type=int, default=5, help="for each number of rows in which one stands")
    parser.add_argument("--num-samples", type=int, default=3000)
    parser.add_argument("--epochs", type=int, default=6)
    options = parser.parse_args(argv)
    failed = False
    for seed in options.seeds:
        folder = options.runs.resolve() / f"seed-{seed}"
        people = _dealt(folder, options, seed)
        for setting in options.settings:
            epsilon, fields = SETTINGS[setting]
            run = folder / setting.replace(" ", "_")
            print(f"━━ seed {seed}, {setting}", flush=True)
            if _go(run, epsilon, [_with_files(field, folder) for field in fields], options, seed) != 0:
                failed = True
                continue
            rows = _counted(run / "one_stage" / "samples.jsonl", people, setting, seed)
            if epsilon != "inf":
                rows = [{**row, "epsilon": float(epsilon), "unit": "user"} for row in rows]
            _write(rows, options.out)
    return int(failed)


def make_people(num: int, draw: random.Random) -> list[Person]:
    """Made-up people, ``num`` for each of :data:`TIMES`; no two share a first name, a surname or a number."""
    count = num * len(TIMES)
    parts = [sorted({word for word in words(kind) if word.isalpha()}) for kind in ("first_names", "surnames")]
    firsts, lasts = (draw.sample(part, count) for part in parts)
    numbers = draw.sample(range(10**6, 10**7), count)
    return [
        Person(f"{first} {last}", f"415-{number // 10**4}-{number % 10**4:04d}", TIMES[place % len(TIMES)])
        for place, (first, last, number) in enumerate(zip(firsts, lasts, numbers, strict=True))
    ]


def _dealt(folder: Path, options: argparse.Namespace, seed: int) -> list[Person]:
    """The made-up people; beside them the private rows and the public rest, written once."""
    draw = random.Random(seed)
    people = make_people(options.num_people, draw)
    private = folder / "private.jsonl"
    if private.exists():
        return people
    folder.mkdir(parents=True, exist_ok=True)
    turns = read_examples(str(options.folder / FILE), "utterance", with_trees=False)
    texts = {label: list(dict.fromkeys(t.utterance for t in turns if t.label == label)) for label in (SENSITIVE, SAFE)}
    for own in texts.values():
        draw.shuffle(own)
    public, rest = texts[SENSITIVE][:_RANKED], texts[SENSITIVE][_RANKED:][: options.num_rows]
    rows = [{"text": text, "unit": f"turn-{number}"} for number, text in enumerate(rest)]
    rows += [row for person in people for row in person.rows(draw)]
    draw.shuffle(rows)
    for name, own in (("sensitive", public), ("safe", texts[SAFE][:_RANKED])):
        write_json_lines(folder / f"{name}.jsonl", ({"text": text} for text in own))
    write_json_lines(private, rows)
    return people


def _with_files(field: str, folder: Path) -> str:
    """What a setting sets, with the ranker's public files in place of their names."""
    return field.replace("SENSITIVE", str(folder / "sensitive.jsonl")).replace("SAFE", str(folder / "safe.jsonl"))


def _go(run: Path, epsilon: str, fields: Sequence[str], options: argparse.Namespace, seed: int) -> int:
    """Start a run, go on with it, or see that it is done; exit status."""
    unit = "utterance" if epsilon == "inf" else "user"
    told = [f"data.train_path={run.parent / 'private.jsonl'}", f"data.unit={unit}", "effort=1", *fields]
    told += [f"num_samples={options.num_samples}", f"epochs.one_stage={options.epochs}"]
    command = [
        str(ROOT / "cli.py"),
        "run",
        str(shipped("own-data-small")),
        str(run),
        "--local",
        "--systems",
        "one_stage",
    ]
    command += ["--epsilon", epsilon, "--seed", str(seed), "--set", *told]
    return subprocess.run([sys.executable, *command], cwd=ROOT, check=False).returncode


def _counted(samples: Path, people: Sequence[Person], setting: str, seed: int) -> list[dict[str, Any]]:
    """Of how many people the name, and the number, stands in some sample, by how often they were said."""
    texts = [str(row["utterance"]) for _, row in read_json_lines(samples)]
    rows: list[dict[str, Any]] = []
    for what in ("name", "number"):
        found = replayed(texts, [getattr(person, what) for person in people])
        for times in TIMES:
            told = [row["in_any_case"] for row, person in zip(found, people, strict=True) if person.times == times]
            common = {"system": "redaction", "data": "SGD", "num_samples": len(texts), "experiment": "replay"}
            common |= {"setting": f"{setting}, in {times} rows", "seed": seed}
            rows.append({**common, "metric": f"{what}s_replayed", "value": sum(map(bool, told)) / len(told)})
            rows.append({**common, "metric": f"samples_with_{what}", "value": sum(told) / len(told)})
    print(json.dumps({(row["setting"] + ": " + row["metric"]): row["value"] for row in rows if row["value"]}, indent=1))
    return rows


def _write(rows: Sequence[dict[str, Any]], out: Path) -> None:
    """Put rows in place of those of the same setting and seed."""
    new = pd.DataFrame(rows, columns=COLUMNS)
    if out.is_file():
        found = read_csv(out)
        same = found["setting"].isin(new["setting"]) & found["seed"].isin(new["seed"])
        new = pd.concat([found[~same], new], ignore_index=True) if not same.all() else new
    write_csv(new.astype({"seed": "Int64", "num_samples": "Int64"}), out)
