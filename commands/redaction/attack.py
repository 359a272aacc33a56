"""What redacted tables still tell."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Any

from datamodules.reading.columns import Columns, reference_columns
from datamodules.reading.examples import read_examples
from datamodules.reading.files import expand_path
from doppel.errors import UserError


def attack(
    *,
    sensitive: str | None = None,
    safe: str | None = None,
    samples: str | None = None,
    strings: Path | None = None,
    columns: Columns = Columns(),  # noqa: B008 (frozen)
    seed: int = 1,
    json: bool = False,
) -> None:
    """Measure how well an attacker tells redacted rows apart, and whether samples repeat what was hidden.

    With --sensitive and --safe: the accuracy, over five folds and as many rows of both, of a classifier (logistic
    regression on TF-IDF of words and pairs) that tells the tables apart; one half is chance. It is a lower bound: some
    other attacker may do better, and a low accuracy says nothing of single people. With --samples and --strings: in how
    many samples each hidden string occurs, as it is and however it is typed. Of private tables these numbers are
    private; they are no ε and bound none.

    Example:
        python cli.py attack --sensitive redacted/sensitive.csv --safe redacted/safe.csv
        python cli.py attack --samples runs/redacted/one_stage/samples.jsonl --strings names.txt

    Args:
        sensitive: The sensitive table, as `redact` wrote it, or before it.
        safe: The safe one.
        samples: What a model wrote, JSON lines.
        strings: Text file of hidden strings, one a line, as `redact` reads it.
        columns: What the columns of the tables are called.
        seed: Of the draw of rows and of the folds.
        json: Print one JSON object.

    Raises:
        UserError: A file cannot be used, or options do not fit together.
    """
    from doppel.redaction.attack import classify, replayed
    from doppel.redaction.patterns import listed

    if seed >= 2**32:
        raise UserError(f"--seed is {seed}: give a number below {2**32}")
    pairs = {("--sensitive", "--safe"): (sensitive, safe), ("--samples", "--strings"): (samples, strings)}
    for names, values in pairs.items():
        if (values[0] is None) != (values[1] is None):
            raise UserError(f"{names[0]} and {names[1]} belong together: give both, or none")
    told: dict[str, Any] = {}
    lines: list[str] = []
    if sensitive is not None and safe is not None:
        found = classify(_texts(sensitive, columns), _texts(safe, columns), seed)
        told["attack"] = found.as_dict()
        lines.append(
            f"a classifier tells the tables apart with accuracy {found.accuracy:.3f} ± {found.standard_error:.3f} "
            f"(chance .5), on {found.num_texts} held-out rows"
        )
    if samples is not None and strings is not None:
        wanted = list(listed(strings))
        rows = replayed(_texts(samples, Columns()), wanted)
        told["replayed"] = rows
        lines += [f"{row['string']}: in {row['verbatim']} samples, {row['in_any_case']} in any case" for row in rows]
    if not told:
        raise UserError("there is nothing to attack: give --sensitive and --safe, or --samples and --strings")
    print(json_module.dumps(told, ensure_ascii=False) if json else "\n".join(lines))


def _texts(path: str, columns: Columns) -> list[str]:
    used = reference_columns(columns)
    turns = read_examples(expand_path(path), "utterance", with_trees=False, columns=used)
    return [turn.utterance for turn in turns if turn.utterance.strip()]
