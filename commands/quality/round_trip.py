"""Of several utterances that were drawn for a tree, the one that a public parser reads as this tree."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from doppel.errors import DataError
from doppel.files import read_json_lines, write_json, write_json_lines


def round_trip(*, candidates: Path, trees: Path, parser: Path, out: Path, seed: int = 0) -> None:
    """Keep, of several utterances drawn for each tree, the one that a public parser reads as this tree.

    For a tree that stands m times in --trees, m of its candidates are kept. First come those with most of the tree's
    quoted names (users say nearly all of them verbatim), then those whose parse is nearest to the tree: an exact match
    of the anonymised graphs, or else the largest share of common nodes and edges. Among equals the draw is uniform over
    the candidates, so that of two faithful texts the likelier one is kept as often as the model says it, and not more.
    A tree without a candidate is left out. OUT.round_trip.json tells how many match.

    Why the guarantee stays: trees and candidates are samples of the private models, and the choice is a function of
    them, of a seed and of a parser; with a public parser this is post-processing. A parser that learnt from the private
    turns without privacy would carry what it knows of them into the choice, and no ε would hold: train it on other
    turns, or on released samples.

    Args:
        candidates: JSON lines with "utterance" and the "parse" that each was drawn for.
        trees: JSON lines with the trees, as the tree model wrote them.
        parser: Checkpoint of the public parser.
        out: The lines that are kept, in the order of the trees.
        seed: Of the draw among equals.

    Raises:
        DataError: A file cannot be used, or no tree has a candidate.
        UserError: The parser cannot be loaded.
    """
    from datamodules.readers import content_digest
    from lightning_modules.semantic_parser import load_parser

    wanted = [str(line.get("parse")) for _, line in read_json_lines(trees)]
    drawn = [line for _, line in read_json_lines(candidates) if isinstance(line.get("utterance"), str)]
    if not any(line.get("parse") in set(wanted) for line in drawn):
        raise DataError(f"{candidates}: no line was drawn for a tree of {trees}; give the file of these very trees")
    texts = list(dict.fromkeys(line["utterance"] for line in drawn))
    parsed = dict(zip(texts, load_parser(parser).annotate(texts, progress=True), strict=True))
    kept = choose(wanted, drawn, parsed, seed)
    write_json_lines(out, kept)
    told = {
        "num_trees": len(wanted),
        "num_candidates": len(drawn),
        "num_kept": len(kept),
        "candidates_match": _share_that_match(drawn, parsed),
        "kept_match": _share_that_match(kept, parsed),
        "parser": str(parser),
        "parser_digest": content_digest(str(parser)),
    }
    write_json(record_of(out), told)
    sys.stdout.write(json.dumps(told, indent=2) + "\n")


def record_of(samples: Path) -> Path:
    """Where it is told how samples were chosen; not there if they were not."""
    return samples.with_name(f"{samples.name}.round_trip.json")


def choose(
    trees: Sequence[str], candidates: Sequence[Mapping[str, Any]], parsed: Mapping[str, str], seed: int
) -> list[Mapping[str, Any]]:
    """As many candidates of each tree as it stands in ``trees``, the most faithful first.

    Args:
        trees: As they were sampled, repeats included.
        candidates: With ``utterance`` and ``parse``.
        parsed: The parser's tree of each utterance.
        seed: Of the draw among equals.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {tree: [] for tree in trees}
    for line in candidates:
        if line.get("parse") in groups:
            groups[line["parse"]].append(line)
    rng, numbers = random.Random(seed), Counter(trees)
    for tree, group in groups.items():
        rng.shuffle(group)
        group.sort(key=lambda line: _faithfulness(tree, line["utterance"], parsed), reverse=True)
        del group[numbers[tree] :]
        rng.shuffle(group)  # a sample of the file's lines is then one of its texts
    return [groups[tree].pop() for tree in trees if groups[tree]]


def _faithfulness(tree: str, utterance: str, parsed: Mapping[str, str]) -> tuple[int, float]:
    from doppel.metrics import graph_overlap, names_said

    return names_said(utterance, tree), graph_overlap(parsed[utterance], tree)


def _share_that_match(lines: Sequence[Mapping[str, Any]], parsed: Mapping[str, str]) -> float:
    from doppel.metrics import graph_overlap

    return sum(graph_overlap(parsed[line["utterance"]], str(line["parse"])) == 1 for line in lines) / len(lines)
