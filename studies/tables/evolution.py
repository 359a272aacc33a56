r"""Private evolution from four starts, beside three systems that train: one table of quality and cost.

    python -m studies.tables evolution yelp dev.csv --runs runs/evolution --out docs/results/evolution.csv
    python -m studies.tables evolution smcalflow TRAIN --reference VALID --runs runs/evolution \
        --out docs/results/evolution.csv

Units of a public file are dealt out by a fixed seed: some play the private ones, some the texts that people have given,
and where no reference is named some the reference. Each cell is a run of ``configs/experiments/DATA-evolution.yaml`` in
a folder of its own under ``--runs``. The same command again goes on with what was cut short, asks a generator for
nothing twice and spends nothing twice; the table is written anew after each run, from all that have finished. Cells
that finished without ``--parser`` are compared again when it is given, beside their folders; nothing of them is made
anew.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from commands.quality.frame import COLUMNS, write_csv
from commands.run.experiment.experiment import load, shipped
from commands.run_folder.places import ROOT, public_names
from datamodules.reading.attribute_codes import AttributeCodes
from datamodules.reading.columns import Columns, check_schema
from datamodules.reading.example import Example
from datamodules.reading.examples import read_examples
from doppel.files import whole_file

#: Cell → its system, and what it sets; ``{donated}`` is the file of given texts.
CELLS: dict[str, tuple[str, dict[str, Any]]] = {
    "0 shot": ("evolution", {"evolution.num_examples": 0}),
    "+M": ("evolution", {"evolution.rows": "attributes", "evolution.num_examples": 0}),
    "+E": ("evolution", {"evolution.examples": "{donated}"}),
    "MAPLE": ("evolution", {"evolution.rows": "attributes", "evolution.examples": "{donated}"}),
    "attributes": ("attributes", {}),
    "one_stage": ("one_stage", {}),
    "one_stage + votes": (
        "one_stage",
        {"resampling.of": "votes", "resampling.clusters": 50, "resampling.oversample": 5},
    ),
}
#: Of a comparison, what the table has.
METRICS = (
    "mauve_minilm",
    "mauve_smollm2_135m",
    "attribute_jsd",
    "word_overlap",
    "next_token_accuracy",
)
#: What it has besides of each attribute: how far its shares are apart, and what samples teach of it.
OF_ATTRIBUTES = ("attribute_jsd_", "attribute_downstream")
NAMES = {"yelp": "Yelp", "smcalflow": "SMCalFlow"}
_SEED = 0


def main(argv: Sequence[str] | None = None) -> int:
    """Private evolution from four starts beside training, a run for each cell; goes on where it was cut short."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=NAMES, help="which experiment, configs/experiments/DATA-evolution.yaml")
    parser.add_argument("turns", help="public turns, which play the private ones")
    parser.add_argument("--reference", help="public turns to compare with; left out, some of the others")
    parser.add_argument("--runs", type=Path, required=True, help="folder of all runs")
    parser.add_argument("--out", type=Path, required=True, help="CSV file to write")
    parser.add_argument("--num-private", type=int, default=4000)
    parser.add_argument("--num-donated", type=int, default=50)
    parser.add_argument("--longest-donated", type=int, default=30, help="words of a given text")
    parser.add_argument("--num-reference", type=int, default=900)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[4.0, 1.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=list(CELLS))
    parser.add_argument("--parser", help="checkpoint of a semantic parser, which reads functions in the samples")
    parser.add_argument("--set", nargs="*", default=[], help="fields of the experiment, NAME=VALUE")
    options = parser.parse_args(argv)
    folder, file = options.runs / options.data, shipped(f"{options.data}-evolution")
    schema = load(file).attributes
    assert schema is not None
    private, donated, reference = _dealt(folder, options, schema.schema)
    failed = False
    for epsilon in options.epsilons:
        for seed in options.seeds:
            for cell in options.cells:
                system, fields = CELLS[cell]
                told = {"data.train_path": private, "reference": reference, **fields}
                words = [f"{name}={str(value).format(donated=donated)}" for name, value in told.items()]
                words += [*options.set, *(["--parser", options.parser] if options.parser else [])]
                run = folder / f"{cell.replace(' ', '')},epsilon={epsilon:g},seed={seed}"
                command = ["run", str(file), str(run), "--local", "--systems", system]
                command += ["--epsilon", f"{epsilon:g}", "--seed", str(seed), "--set", *words]
                print(f"━━ {run.name}", flush=True)
                failed |= _go(run, command) != 0
                if options.parser and (run / "report.json").is_file():
                    failed |= _judge(run, system, reference, schema.schema, options.parser) != 0
                _write(options.runs, options.out)
    return int(failed)


def _go(run: Path, command: Sequence[str]) -> int:
    """Start or go on with a run, and note the CPU seconds that this took beside its folder; exit status."""
    if (run / "report.json").is_file():
        return 0
    before = _cpu_seconds()
    status = subprocess.run([sys.executable, str(ROOT / "cli.py"), *command], cwd=ROOT, check=False).returncode
    with run.with_name(f"{run.name}.cpu").open("a", encoding="utf-8") as file:
        file.write(f"{_cpu_seconds() - before:.1f}\n")
    return status


def _judge(run: Path, system: str, reference: str, schema: str, parser: str) -> int:
    """Compare the samples of a run again, by trees that a parser reads in them, if nobody has yet; exit status."""
    out = _parsed(run)
    told = [json.loads(file.read_text(encoding="utf-8")) for file in (run / "report.json", out) if file.is_file()]
    read = [str(own.get("parser") or "") for own in told]  # by its name or its path; in a report a digest follows
    place = str(Path(parser).resolve())
    known = {parser, place, public_names(place)}
    if any(name == path or name.startswith(f"{path} ") for name in read for path in known):
        return 0
    seed = run.name.rpartition("=")[2]  # of the run's own comparison: the same human turns
    words = ["evaluate", "--synthetic", str(run / system / "samples.jsonl"), "--reference", reference]
    words += ["--columns", json.dumps({"attributes": schema}), "--parser", parser, "--seed", seed, "--no-mauve"]
    words += ["--out", str(out)]
    return subprocess.run([sys.executable, str(ROOT / "cli.py"), *words], cwd=ROOT, check=False).returncode


def _parsed(run: Path) -> Path:
    """Where the comparison by a parser stands that came after a run."""
    return run.with_name(f"{run.name}.parsed.json")


def _cpu_seconds() -> float:
    """Of all processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _dealt(folder: Path, options: argparse.Namespace, schema: str) -> tuple[Path, Path, str]:
    """Files of private and of given texts, and the reference; written once."""
    private, donated, reference = (folder.resolve() / name for name in ("private.csv", "donated.csv", "reference.csv"))
    named = None if options.reference is None else str(Path(options.reference).resolve())
    if private.exists():
        return private, donated, named or str(reference)
    folder.mkdir(parents=True, exist_ok=True)
    codes = check_schema(schema)
    columns = Columns(attributes=schema)
    turns = [turn for turn in read_examples(options.turns, "utterance", columns=columns) if turn.utterance.strip()]
    random.Random(_SEED).shuffle(turns)
    given = [turn for turn in turns if len(turn.utterance.split()) <= options.longest_donated][: options.num_donated]
    texts = {turn.utterance for turn in given}
    rest = [turn for turn in turns if turn.utterance not in texts]
    if named is None:
        _write_turns(reference, rest[: options.num_reference], codes, True)
        rest = rest[options.num_reference :]
    _write_turns(donated, given, codes, False)
    _write_turns(private, rest[: options.num_private], codes, True)
    return private, donated, named or str(reference)


def _write_turns(path: Path, turns: Sequence[Example], codes: AttributeCodes, as_table: bool) -> None:
    """Write turns as a table.

    Args:
        path: The file.
        turns: Turns with their attributes.
        codes: Of the attributes.
        as_table: With trees, and with the columns that attributes are read of; else with all attributes by their names.
    """
    columns = codes.schema.columns
    kept = {(c.source or "") if as_table else c.name: place for place, c in enumerate(columns)}
    kept.pop("", None)
    rows = []
    for turn in turns:
        places = codes.read(turn.label or "")
        row = {"text": turn.utterance, **({"parse": turn.parse} if as_table and turn.parse else {})}
        rows.append(row | {name: columns[place].values[places[place]] for name, place in kept.items()})
    with whole_file(path) as file:
        file.write(pd.DataFrame(rows).to_csv(index=False).encode())


def _write(runs: Path, out: Path) -> None:
    """The table of all runs that have finished."""
    rows: list[dict[str, Any]] = []
    for report in sorted(runs.glob("*/*/report.json")):
        run = report.parent
        told = json.loads(report.read_text(encoding="utf-8"))
        cell, epsilon, seed = run.name.replace("epsilon=", "").replace("seed=", "").split(",")
        ((system, metrics),) = told["metrics"].items()
        if _parsed(run).is_file():
            later = json.loads(_parsed(run).read_text(encoding="utf-8"))
            metrics |= {name: value for name, value in later.items() if value is not None}
        names = (*METRICS, *sorted(name for name in metrics if name.startswith(OF_ATTRIBUTES)))
        common = {"data": NAMES[run.parent.name], "num_samples": told["num_samples"], "experiment": "evolution"}
        own = {**common, "system": system, "epsilon": float(epsilon), "seed": int(seed), "setting": _named(cell)}
        values = {name: metrics[name] for name in names if metrics.get(name) is not None}
        cost = run / system / "samples.jsonl.evolution.json"
        values["answers"] = json.loads(cost.read_text(encoding="utf-8"))["spent_calls"] if cost.exists() else 0
        seconds = [float(line) for line in run.with_name(f"{run.name}.cpu").read_text(encoding="utf-8").splitlines()]
        values["cpu_minutes"] = sum(seconds) / 60
        rows += [{**own, "metric": name, "value": round(value, 4)} for name, value in values.items()]
        human = {**common, "system": "human", "setting": "people"}
        for name in names:
            if metrics.get(f"human_{name}") is not None:
                rows.append({**human, "metric": name, "value": round(metrics[f"human_{name}"], 4)})
    if rows:
        frame = pd.DataFrame(rows, columns=COLUMNS).astype({"seed": "Int64", "num_samples": "Int64"})
        write_csv(frame.drop_duplicates(["data", "setting", "epsilon", "seed", "metric"]), out)


def _named(cell: str) -> str:
    """A cell by the name of its folder."""
    return next(name for name in CELLS if name.replace(" ", "") == cell)
