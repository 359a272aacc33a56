"""What was spent, and whether it covers what was sampled."""

from __future__ import annotations

import sys
from json import dumps as to_json
from pathlib import Path

from commands.privacy.coverage import covered_summary, of_runs
from commands.run.execution.slurm import load_site
from commands.run_folder.run_folder import RunFolder
from doppel.console.ledger import FILE_NAME, SITE, find, tables
from doppel.garbage import no_collection
from doppel.privacy.ledger import Ledger


@no_collection()
def ledger(run_dir: Path | None = None, *, json: bool = False) -> None:
    """Print what a run has spent, per mechanism and composed, and whether that covers what it sampled.

    Each budget (a released system) stands against its target. What was sampled is followed back through the manifest: a
    budget is NOT PRIVATE, with the reason, where the ledger does not pay for it. Reads only; steps that a crash rolled
    back stay spent. Of a ledger that serves a whole site no manifest is read: give the folder of a run for that.

    Example:
        python cli.py ledger runs/mine

    Args:
        run_dir: Run folder, a stage folder in it, the ledger file, or a folder of runs such as a grid; left out, the
            one for all runs of the site, which DOPPEL_LEDGER or the environment of slurm/site.yaml names.
        json: Print one JSON object instead of tables.

    Raises:
        LedgerError: There is no ledger, or it cannot be read.
    """
    if run_dir is not None and (told := of_runs(run_dir)) is not None and not json:
        sys.stdout.write(told + "\n")
        return
    path = find(run_dir, load_site().environment.get(SITE) if run_dir is None else None)
    summary = covered_summary(RunFolder(path.parent)) if path.name == FILE_NAME else None
    summary = summary or Ledger(path).summary()
    sys.stdout.write((to_json(summary, indent=2) if json else tables(summary)) + "\n")
