"""The figures of sampled trees: what is invented, what is right though the reference lacks it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from studies.tables import tree_names


def write(path: Path, *trees: str) -> str:
    path.write_text("".join(json.dumps({"utterance": f"say {tree}", "parse": tree}) + "\n" for tree in trees))
    return str(path)


def test_functions_are_told_apart_by_who_calls_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reference = write(tmp_path / "reference.jsonl", "(A)", "(A (B))")
    humans = write(tmp_path / "humans.jsonl", "(A)", "(C)", "(A (B))", "(A (C))")
    sampled = write(tmp_path / "trees.jsonl", "(A)", "(C)", "(A (D))", "(C (D))")
    Path(f"{sampled}.metrics.json").write_text(json.dumps({"synthetic/num_drawn": 5, "synthetic/dropped/malformed": 1}))
    tree_names.main([sampled, "--reference", reference, "--humans", humans])
    rows = {(name, metric): float(value) for name, metric, value in csv.reader(io.StringIO(capsys.readouterr().out))}
    of_samples = {metric: value for (name, metric), value in rows.items() if name == sampled}
    assert of_samples["invented"] == 0.5 and of_samples["unseen"] == 0.5 and of_samples["malformed"] == 0.2
    assert of_samples["function_overlap"] == pytest.approx(2 / 3, abs=1e-4) and of_samples["distinct_trees"] == 1
    assert rows[reference, "invented"] == rows[reference, "unseen"] == 0
    assert rows[reference, "chi_square"] < of_samples["chi_square"]
