"""What was spent, and whether it covers what was sampled."""

from __future__ import annotations

import sys
from dataclasses import replace
from json import dumps as to_json
from pathlib import Path

from commands.privacy.coverage import covered_summary
from commands.run.execution.slurm import load_site
from commands.run_folder.run_folder import RunFolder
from doppel.console.collection import no_collection
from doppel.console.ledger import FILE_NAME, SITE, find, tables
from doppel.files import run_of
from doppel.privacy.accounting import Mechanism, compute_epsilon
from doppel.privacy.ledger import Ledger


def of_runs(folder: Path) -> str | None:
    """Return ε of each run of a folder, and of all together on the same people; None where it holds no runs."""
    if not folder.is_dir() or (folder / FILE_NAME).is_file() or (run_of(folder) / FILE_NAME).is_file():
        return None
    summaries = {
        record.folder: Ledger(record.folder / FILE_NAME).summary()
        for record in RunFolder.find(folder)
        if (record.folder / FILE_NAME).is_file()
    }
    mechanisms = [m for summary in summaries.values() for m in summary["mechanisms"]]
    if not mechanisms:
        return None
    lines = [f"{path.relative_to(folder)}: {summary['statement']}" for path, summary in summaries.items()]
    delta = min(m["delta"] for m in mechanisms)
    spent = [Mechanism(m["sample_rate"], m["noise_multiplier"], m["done_steps"]) for m in mechanisms]
    steps = [max(m["done_steps"], m["planned_steps"]) for m in mechanisms]
    whole = [replace(own, steps=num) for own, num in zip(spent, steps, strict=True) if own.steps]
    epsilon, so_far = compute_epsilon(whole, delta), compute_epsilon(spent, delta)
    text = f"All {len(summaries)} runs together, on the same people: epsilon = {epsilon:.4g} at delta = {delta:.3g}"
    return "\n".join([*lines, f"{text}, by the pld accountant; spent so far: epsilon = {so_far:.4g}."])


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
