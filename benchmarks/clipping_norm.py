"""What the clipping norm does to sampled trees: p(y) trained as if public turns were private, once for each C.

    python -m benchmarks.clipping_norm configs/experiments/smcalflow-best-small.yaml --runs runs/clipping_norm \
        --norms 4 8 16 32 [--set NAME=VALUE …] [--out TABLE.md]

The experiment's training file must be public: C is chosen by what comes out. Each C trains p(y) with the noise that it
has in a whole two-stage run, samples as many trees as there are in the reference, and compares the two. What is done is
not done again. `python cli.py norms` says without any training which C to try first.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks._harness import Report, table
from commands.pipeline.experiment import ROOT, load
from commands.pipeline.recipes import steps_of
from commands.pipeline.run import read_values
from commands.pipeline.run_stage import run_stage
from datamodules.readers import expand_path, read_turns
from doppel.files import read_json_lines
from doppel.lispress import is_valid
from doppel.metrics.compare import function_metrics, tree_repetition

COLUMNS = ("C", "commonest", "distinct", "characters", "F.Overlap", "χ²", "well-formed")


def trees(experiment: Path, run: Path, changes: dict[str, Any]) -> list[str]:
    """Trees of a p(y) that an experiment trains; what ``run`` holds already is kept.

    Raises:
        SystemExit: A stage failed.
    """
    stages = {stage.name: stage for stage in steps_of(load(experiment, changes), run)}
    (run / "configs").mkdir(parents=True, exist_ok=True)
    for name in ("parse_tree", "sample_trees"):
        (run / "configs" / f"{name}.yaml").write_text(yaml.safe_dump(dict(stages[name].config or {})))
        command = [sys.executable, str(ROOT / "cli.py"), *stages[name].argv]
        if status := run_stage(stages[name].kind, run / ".done" / name, command, cwd=ROOT):
            raise SystemExit(status)
    return [line["parse"] for _, line in read_json_lines(run / "trees.jsonl")]


def row(name: str, sampled: Sequence[str], reference: Sequence[str]) -> list[str]:
    """A line of the table."""
    repeated, functions = tree_repetition(sampled, []), function_metrics(sampled, reference, "node_labels")
    shares = (repeated["commonest_tree"], repeated["distinct_trees"])
    characters, valid = sum(map(len, sampled)) / len(sampled), sum(map(is_valid, sampled)) / len(sampled)
    scores = [f"{functions[key]:.3f}" for key in ("function_overlap", "chi_square")]
    return [name, *(f"{share:.1%}" for share in shares), f"{characters:.0f}", *scores, f"{valid:.1%}"]


def main(argv: Sequence[str] | None = None) -> None:
    """Train, sample and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=Path)
    parser.add_argument("--runs", type=Path, required=True, help="folder of the trainings, one for each C")
    parser.add_argument("--norms", type=float, nargs="+", default=[4.0, 8.0, 16.0, 32.0])
    parser.add_argument("--set", nargs="*", default=[], help="fields of the experiment, as for `run`")
    parser.add_argument("--out", type=Path, help="file to write as well")
    options = parser.parse_args(argv)
    given = {"systems": ["two_stage"], "calibration": None, **read_values(options.set)}
    experiment = load(options.experiment, given)
    assert experiment.reference is not None
    turns = read_turns(expand_path(experiment.reference), "utterance", needs=("parse",))
    reference = [turn.parse or "" for turn in turns]
    given["num_samples"] = len(reference)
    note = f"{options.experiment}, ε = {experiment.epsilon:g}, {len(reference)} trees of each; last row: half of the "
    report = Report("Clipping norm", "cpu", options.out, append=False, notes=[f"{note}reference against the other"])
    rows = []
    for norm in options.norms:
        changes = {**given, "privacy.max_grad_norm": norm}
        rows.append(
            row(f"{norm:g}", trees(options.experiment, (options.runs / f"{norm:g}").resolve(), changes), reference)
        )
    rows.append(row("reference", reference[::2], reference[1::2]))
    report.add(table(COLUMNS, rows))


if __name__ == "__main__":
    main()
