"""What was spent, and whether it covers what was sampled."""

from __future__ import annotations

import sys
from json import dumps as to_json
from pathlib import Path

from commands.pipeline.run_record import RunRecord
from commands.privacy.attestation import attested
from doppel.console.ledger import find, tables


def ledger(run_dir: Path, *, json: bool = False) -> None:
    """What a run has spent, per mechanism and composed, and whether that covers what it sampled.

    Print every mechanism, every scope (a released system) against its target, and everything composed. Every checkpoint
    that was sampled from is opened: a scope is NOT PRIVATE, with the reason, where the ledger does not pay for one.
    Reads only; steps that a crash rolled back stay spent.

    Args:
        run_dir: Run folder, a stage folder in it, or the ledger file.
        json: Print one JSON object instead of tables.

    Raises:
        LedgerError: There is no ledger, or it cannot be read.
    """
    summary = attested(RunRecord(find(run_dir).parent))
    assert summary is not None
    sys.stdout.write((to_json(summary, indent=2) if json else tables(summary)) + "\n")
