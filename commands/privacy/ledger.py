"""What was spent, and whether it covers what was sampled."""

from __future__ import annotations

import sys
from json import dumps as to_json
from pathlib import Path

from commands.pipeline.run_record import RunRecord
from commands.pipeline.slurm import load_site
from commands.privacy.attestation import attested
from doppel.console.collection import no_collection
from doppel.console.ledger import FILE_NAME, SITE, find, tables
from doppel.privacy.ledger import Ledger


@no_collection()
def ledger(run_dir: Path | None = None, *, json: bool = False) -> None:
    """What a run has spent, per mechanism and composed, and whether that covers what it sampled.

    Print every mechanism, every scope (a released system) against its target, and everything composed. Every checkpoint
    that was sampled from is opened: a scope is NOT PRIVATE, with the reason, where the ledger does not pay for one.
    Reads only; steps that a crash rolled back stay spent. Of a ledger that serves a whole site no samples are opened:
    give the folder of a run for that.

    Args:
        run_dir: Run folder, a stage folder in it, or the ledger file; left out, the one for all runs of the site, which
            DOPPEL_LEDGER or the environment of slurm/site.yaml names.
        json: Print one JSON object instead of tables.

    Raises:
        LedgerError: There is no ledger, or it cannot be read.
    """
    path = find(run_dir, load_site().environment.get(SITE) if run_dir is None else None)
    summary = attested(RunRecord(path.parent)) if path.name == FILE_NAME else None
    summary = summary or Ledger(path).summary()
    sys.stdout.write((to_json(summary, indent=2) if json else tables(summary)) + "\n")
