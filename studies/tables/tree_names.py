"""Sampled trees against human ones: which functions are invented, and which are right though no reference has them.

python -m studies.tables tree-names --reference PUBLIC --humans MORE TREES.jsonl …    lines METRIC,VALUE for each file

The reference is what a grammar may have taken its names from; ``--humans`` are other turns of the same assistant, with
which frequencies are compared, because the names of the reference would flatter. Both must be public. Beside each file
of trees lies what the sampling wrote of it, ``TREES.jsonl.metrics.json``.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

from datamodules.reading.examples import read_examples
from datamodules.reading.files import expand_path
from doppel.files import read_json_lines
from doppel.lispress.calls import BINDERS
from doppel.lispress.function_types import valid_function_types
from doppel.metrics.compare import function_metrics, tree_repetition


def heads(tree: str) -> frozenset[str]:
    """The functions that a tree calls; none where it is not well-formed."""
    return frozenset(valid_function_types(tree, "call_heads") or ()) - frozenset(BINDERS)


def measure(trees: Sequence[str], reference: Sequence[str], humans: Sequence[str]) -> dict[str, float]:
    """Figures of sampled trees.

    Args:
        trees: Sampled ones.
        reference: Public trees that may have given the names.
        humans: Other public trees of the same assistant.

    Returns:
        Shares of trees with a function that nobody calls (``invented``) and with one that the reference lacks and
        others call (``unseen``); χ² and overlap of functions against ``humans``; distinct and commonest tree.
    """
    known = frozenset[str]().union(*map(heads, reference))
    real = frozenset[str]().union(*map(heads, humans))

    def share(names: Set[str]) -> float:
        return sum(bool(heads(tree) & names) for tree in trees) / len(trees)

    called = frozenset[str]().union(*map(heads, trees))
    of_functions: dict[str, Any] = function_metrics(trees, humans)
    repeated: dict[str, Any] = tree_repetition(trees, humans)
    found = {"invented": share(called - known - real), "unseen": share((called & real) - known)}
    found |= {name: float(of_functions[name] or 0.0) for name in ("chi_square", "function_overlap")}
    return found | {name: float(repeated[name] or 0.0) for name in ("distinct_trees", "commonest_tree")}


def trees_of(path: str) -> list[str]:
    """The trees of a public file of turns."""
    return [turn.parse for turn in read_examples(expand_path(path), "utterance") if turn.parse is not None]


def main(argv: Sequence[str] | None = None) -> None:
    """Sampled trees against human ones: functions that are invented, and right ones that the reference lacks."""
    parser = argparse.ArgumentParser(
        prog="python -m studies.tables tree-names", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("trees", nargs="+", type=Path)
    parser.add_argument("--reference", required=True)
    parser.add_argument("--humans", required=True)
    given = parser.parse_args(argv)
    reference, humans = trees_of(given.reference), trees_of(given.humans)
    sampled = {str(path): [str(line["parse"]) for _, line in read_json_lines(path)] for path in given.trees}
    size = max(map(len, sampled.values()))
    thinned = [reference[i * len(reference) // size] for i in range(min(size, len(reference)))]
    out = csv.writer(sys.stdout)
    for name, trees in {given.reference: thinned, **sampled}.items():
        figures = measure(trees, reference, humans)
        told = Path(f"{name}.metrics.json")
        if told.is_file():
            content = json.loads(told.read_text(encoding="utf-8"))
            figures["malformed"] = content.get("synthetic/dropped/malformed", 0) / content["synthetic/num_drawn"]
        out.writerows([name, metric, f"{value:.4f}"] for metric, value in figures.items())
