"""What a run has spent, per mechanism and composed."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from doppel.privacy.ledger import Ledger, LedgerError

FILE_NAME = "ledger.jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `ledger` to a parser."""
    parser.description = (
        "Print what was spent: every mechanism, every scope (a released system) against its target, and "
        "everything composed. Reads only; steps that a crash rolled back stay spent."
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", help="run folder, a stage folder in it, or the ledger file")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")


def run(args: argparse.Namespace) -> None:
    """Print the ledger of a run.

    Raises:
        LedgerError: If there is no ledger or it cannot be read.
    """
    summary = Ledger(find(args.run_dir)).summary()
    print(json.dumps(summary, indent=2) if args.json else tables(summary))


def find(run_dir: str | Path) -> Path:
    """The ledger file of a run folder, of a stage folder inside one, or the file itself.

    Raises:
        LedgerError: If there is none.
    """
    start = Path(run_dir)
    for candidate in (start, start / FILE_NAME, start.parent / FILE_NAME):
        if candidate.is_file():
            return candidate
    raise LedgerError(
        f"{start}: no {FILE_NAME} here or one folder up: name the folder of a private run (one trained with "
        "the "
        "differential-privacy overlay)."
    )


def tables(summary: dict[str, Any]) -> str:
    """The summary for people."""
    mechanisms = [
        [
            m["id"],
            m["unit"],
            f"{m['sample_rate']:.5g}",
            f"{m['noise_multiplier']:.4f}",
            f"{m['max_grad_norm']:g}",
            f"{m['batch_size']:,}",
            f"{m['num_units']:,}",
            f"{m['done_steps']:,}/{m['planned_steps']:,}",
            f"{m['epsilon']:.3f}",
            m["data_fingerprint"][:12],
        ]
        for m in summary["mechanisms"]
    ]
    scopes = [
        [
            name,
            s["unit"],
            "none" if s["epsilon"] is None else f"{s['epsilon']:.3f}",
            f"{s['target_epsilon']:g}",
            f"{s['delta']:.3g}",
            s["accountant"],
            f"{s['steps_done']:,}/{s['steps_planned']:,}",
        ]
        for name, s in summary["scopes"].items()
    ]
    parts = [summary["statement"]]
    if scopes:
        head = ["mechanism", "unit", "q", "sigma", "C", "B", "N", "steps", "epsilon alone", "data"]
        parts.insert(0, _aligned([head, *mechanisms]))
        parts.insert(1, _aligned([["scope", "unit", "epsilon", "target", "delta", "accountant", "steps"], *scopes]))
    return "\n\n".join(parts)


def _aligned(rows: list[list[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)
