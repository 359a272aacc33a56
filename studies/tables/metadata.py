"""How far private rows of attributes are from the table that they are like.

    python -m studies.tables metadata TURNS --out docs/results/metadata.csv

The table has ten attributes of turns of a public file, each a function of a turn's text and tree. Rows are made of it
by `python cli.py metadata`, with a ledger of their own; the distance is the mean over all pairs of attributes of the
total variation between the shares of rows and table. What other rows of the same file have in its place stands beside.
"""

from __future__ import annotations

import argparse
import csv
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import yaml

from commands.privacy.metadata import metadata
from commands.quality.frame import COLUMNS, write_csv
from datamodules.reading.attributes import Attributes
from datamodules.reading.example import Example
from datamodules.reading.examples import read_examples
from doppel.tables.marginals import Whole, total_variation

_ACTS = ["Yield", "Revise", "Select", "ThankYou", "Affirm", "Negate", "RequestAlts", "Goodbye", "AffirmIntent"]
#: Attributes have at most so many values, the commonest ones of the public file, and "other".
_MOST = 19


def _tree(turn: Example) -> str:
    return turn.parse or ""


def _first(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    return found[1] if found else "none"


def _number(text: str) -> str:
    return "time" if re.search(r"\d:\d\d|\d ?[ap]m", text) else "digits" if re.search(r"\d", text) else "none"


#: Attribute → its value of a turn.
ATTRIBUTES: dict[str, Callable[[Example], str]] = {
    "domain": lambda turn: turn.label or "none",
    "act": lambda turn: next((act for act in _ACTS if re.search(rf"\({act}\b", _tree(turn))), "none"),
    "function": lambda turn: _first(r"\(([A-Z]\w+\.[A-Z]\w+)", _tree(turn)),
    "argument": lambda turn: _first(r"\(\w+\.(\w+_\?)", _tree(turn)),
    "num_arguments": lambda turn: str(min(_tree(turn).count("_?"), 4)),
    "num_acts": lambda turn: str(sum(f"({act}" in _tree(turn) for act in _ACTS)),
    "length": lambda turn: str(min(len(turn.utterance.split()) // 3, 6)),
    "first_word": lambda turn: re.sub(r"\W", "", turn.utterance.split()[0].lower()) or "none",
    "last_sign": lambda turn: turn.utterance.strip()[-1],
    "number": lambda turn: _number(turn.utterance),
}


def main(argv: Sequence[str] | None = None) -> None:
    """How far private rows of attributes are from the table that they are like."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("turns", help="public turns with trees")
    parser.add_argument("--data", default="SGD", help="what the turns are called in the table")
    parser.add_argument("--num-rows", type=int, default=8000)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 4.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--methods", nargs="+", default=["aim", "independent"])
    parser.add_argument("--out", type=Path, required=True, help="CSV file to write")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    common = {"system": "metadata", "data": options.data, "num_samples": options.num_rows, "experiment": "metadata"}
    with tempfile.TemporaryDirectory() as name:
        folder, found = Path(name), []
        _write_tables(folder, options.turns, options.num_rows)
        apart = total_variation(_codes(folder, "others"), _codes(folder, "table"), _sizes(folder))
        found.append(
            {**common, "setting": "other rows of the file", "metric": "total_variation", "value": round(apart, 4)}
        )
        print(f"other rows: {apart:.4f}")
        for epsilon in options.epsilons:
            for method in options.methods:
                for seed in options.seeds:
                    start = time.process_time()
                    apart = _apart(folder, method, epsilon, seed, options.num_rows)
                    row = {**common, "epsilon": epsilon, "setting": method, "seed": seed}
                    found.append({**row, "metric": "total_variation", "value": round(apart, 4)})
                    print(
                        f"ε = {epsilon:g}, {method}, seed {seed}: {apart:.4f}, {time.process_time() - start:.0f} CPU s"
                    )
    write_csv(pd.DataFrame(found, columns=COLUMNS).astype({"seed": "Int64"}), options.out)


def _apart(folder: Path, method: Any, epsilon: float, seed: int, num_rows: int) -> float:
    """Distance of private rows from the table."""
    made = f"{method}-{epsilon:g}-{seed}"
    metadata(
        str(folder / "table.csv"),
        out=folder / made / f"{made}.csv",
        num_rows=num_rows,
        epsilon=epsilon,
        delta=1e-5,
        schema=folder / "schema.yaml",
        method=method,
        unit="utterance",
        seed=seed,
    )
    return total_variation(_codes(folder, f"{made}/{made}"), _codes(folder, "table"), _sizes(folder))


def _write_tables(folder: Path, turns: str, num_rows: int) -> None:
    """The table, as many other rows, and the schema, whose values are those of the public file."""
    read = [turn for turn in read_examples(turns, "utterance") if turn.utterance.strip()]
    drawn = random.Random(0).sample(read, 2 * num_rows)
    rows = [{name: of(turn) for name, of in ATTRIBUTES.items()} for turn in drawn]
    values = {
        name: [value for value, _ in Counter(row[name] for row in rows).most_common(_MOST)] for name in ATTRIBUTES
    }
    (folder / "schema.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    for name, part in (("table", rows[:num_rows]), ("others", rows[num_rows:])):
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(ATTRIBUTES))
            writer.writeheader()
            writer.writerows(part)


def _codes(folder: Path, name: str) -> Whole:
    _, table = Attributes(str(folder / f"{name}.csv"), schema=folder / "schema.yaml", unit="utterance").read()
    return np.asarray(table.codes)


def _sizes(folder: Path) -> tuple[int, ...]:
    _, table = Attributes(str(folder / "table.csv"), schema=folder / "schema.yaml", unit="utterance").read()
    return table.sizes
