"""A CSV file of what ``score.sh`` has measured: a row a run and metric, with its setting, machine and commit.

python -m benchmarks.gpu.scores OUT CSV
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import yaml

COLUMNS = ("run", "system", "data", "epsilon", "num_units", "expected_batch_size", "num_steps", "metric", "value")
COLUMNS += ("reference", "gpu", "commit")
#: Ends of the names of what ``score.sh`` wrote → human turns that samples were compared with.
REFERENCES = {"": "valid", "a": "first half of valid", "b": "second half of valid"}


def rows(out: Path) -> list[dict[str, Any]]:
    """The rows of all runs of a folder that have been judged."""
    found = []
    for values in sorted((*out.glob("results/*/*/samples.json"), *out.glob("results/*/*/samples.?.json"))):
        run = values.parents[1]
        experiment = yaml.safe_load((run / "experiment.yaml").read_text())
        ledger = run / "ledger.jsonl"  # which a run without privacy has not
        lines = [json.loads(line) for line in ledger.read_text().splitlines()] if ledger.exists() else []
        mechanisms = [line for line in lines if "noise_multiplier" in line]
        common = {
            "run": run.name,
            "system": "+".join(experiment["systems"]),
            "data": "SGD" if "sgd" in str(experiment["data"]["train_path"]) else "SMCalFlow",
            "epsilon": experiment["epsilon"],
            "num_units": mechanisms[-1]["num_units"] if mechanisms else "",
            "expected_batch_size": mechanisms[-1]["batch_size"] if mechanisms else "",
            "num_steps": sum(  # with bands whole rounds, up to b - 1 more
                (line["planned_steps"] - line.get("reserve", 0)) * line.get("bands", 1) for line in mechanisms
            ),
            "gpu": (out / "gpu.txt").read_text().strip() if (out / "gpu.txt").exists() else "",
            "reference": REFERENCES[values.suffixes[-2][1:] if len(values.suffixes) > 1 else ""],
            "commit": " ".join(experiment.get("commit") or []),
        }
        metrics = json.loads(values.read_text())
        found += [{**common, "metric": k, "value": v} for k, v in metrics.items() if isinstance(v, int | float)]
    return found


def main(out: str, file: str) -> None:
    """Write the file."""
    with open(file, "w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        writer.writerows(rows(Path(out)))


if __name__ == "__main__":
    main(*sys.argv[1:])
