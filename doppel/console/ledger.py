"""What a run has spent, per mechanism and composed."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from json import dumps as to_json
from pathlib import Path
from typing import Any

from doppel.console.table import Table
from doppel.privacy.ledger import Ledger, LedgerError
from doppel.privacy.plan import TRAININGS, counted_in
from doppel.run_folder import run_of

FILE_NAME = "ledger.jsonl"
#: Variable that names one ledger for all runs of a site.
SITE = "DOPPEL_LEDGER"


def ledger(run_dir: Path | None = None, *, json: bool = False) -> None:
    """Print what a run has spent, per mechanism and composed.

    Each budget (a released system) stands against its target. Reads only; steps that a crash rolled back stay spent.

    Example:
        doppel ledger runs/mine

    Args:
        run_dir: Run folder, a stage folder in it, or the ledger file; left out, the one that DOPPEL_LEDGER names.
        json: Print one JSON object instead of tables.

    Raises:
        LedgerError: There is no ledger, or it cannot be read.
    """
    summary = Ledger(find(run_dir)).summary()
    sys.stdout.write((to_json(summary, indent=2) if json else tables(summary)) + "\n")


def find(run_dir: Path | None, site: str | None = None) -> Path:
    """Find the ledger of a run folder, of a stage folder inside one, or the file itself.

    Args:
        run_dir: The place; None: the ledger that serves a whole site.
        site: That one; None: the one that DOPPEL_LEDGER names.

    Raises:
        LedgerError: If there is none.
    """
    if run_dir is None:
        site = os.environ.get(SITE) or site
        if not site:
            known = sorted(path.parent for path in Path("runs").glob(f"*/{FILE_NAME}"))
            such = ", ".join(map(str, known[:5])) or "runs/mine"
            raise LedgerError(f"name a run folder ({such}), or set {SITE} to the ledger that all runs share")
        if not Path(site).is_file():
            raise LedgerError(f"{SITE} is {site}, where no run has written yet: name a run folder")
        return Path(site)
    for candidate in (run_dir, run_dir / FILE_NAME):
        if candidate.is_file():
            return candidate
    beside = run_of(run_dir) / FILE_NAME
    if beside.is_file():
        mechanisms = Ledger(beside).summary()["mechanisms"]
        stages = list(dict.fromkeys(mechanism["stage"] for mechanism in mechanisms))
        if run_dir.resolve().name in {*stages, *(mechanism["scope"] for mechanism in mechanisms)}:
            return beside
        raise LedgerError(
            f"{run_dir} is in no ledger: {beside} knows the stages {', '.join(stages) or '(none)'}, and what else lies "
            "there was trained without privacy, or elsewhere."
        )
    raise LedgerError(
        f"{run_dir}: no {FILE_NAME} here or in a run above it: name the folder of a private run, with `privacy:` set."
    )


def tables(summary: dict[str, Any]) -> str:
    """Render the summary for people."""
    mechanisms = [
        {
            "mechanism": m["id"],
            "unit": m["unit"],
            "q": f"{m['sample_rate']:.5g}",
            "sigma": f"{m['noise_multiplier']:.4f}",
            "C": f"{m['max_grad_norm']:g}" if m["kind"] in TRAININGS else "–",
            "B": f"{m['batch_size']:,}" if m["kind"] in TRAININGS else "–",
            "N": f"{m['num_units']:,}",
            "steps": f"{m['done_steps']:,}/{m['planned_steps']:,}"
            + (f" {counted_in(m['bands'])}" if "bands" in m else ""),
            "epsilon alone": "void" if m["epsilon"] is None else f"{m['epsilon']:.3f}",
            "data": m["data_fingerprint"][:12],
        }
        for m in summary["mechanisms"]
    ]
    scopes = [
        {
            "budget": name,
            "unit": s["unit"],
            "epsilon": "NOT PRIVATE" if s["epsilon"] is None else f"{s['epsilon']:.3f}",
            "target": f"{s['target_epsilon']:g}",
            "delta": f"{s['delta']:.3g}",
            "accountant": s["accountant"],
            "steps": f"{s['steps_done']:,}/{s['steps_planned']:,}",
        }
        for name, s in summary["scopes"].items()
    ]
    statements, everything = [summary["statement"]], summary["everything"]
    statements += [what_is_torn(m) for m in summary["mechanisms"] if m.get("torn_lines")]
    if everything["num_data_sets"] > 1:
        many = f"This ledger has {everything['num_data_sets']} versions of the data, taken for the same people."
        statements.append(many)
    if everything["num_runs"] > 1:
        statements.append(everything["statement"])
    return "\n\n".join([*(_aligned(rows) for rows in (mechanisms, scopes) if rows), *statements])


def what_is_torn(mechanism: Mapping[str, Any]) -> str:
    """Return which lines are charged to a mechanism of a summary for being torn, and how to mend them."""
    lines = mechanism["torn_lines"]
    which, are = ("line", "is") if len(lines) == 1 else ("lines", "are")
    return (
        f"In {FILE_NAME}, {which} {', '.join(map(str, lines))} {are} torn (a crash cut a line while it was written), "
        f"and charged as {len(lines)} of the {mechanism['done_steps']} steps of {mechanism['id']}, for they may have "
        "run: put a copy of the file back that has it whole, if there is one; nothing else can take the charge back."
    )


def _aligned(records: list[dict[str, str]]) -> str:
    return Table(list(records[0]), [list(record.values()) for record in records]).text("<")
