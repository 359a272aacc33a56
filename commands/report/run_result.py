"""A run as Python has it: its samples, figures and privacy card."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doppel.errors import UserError
from doppel.files import read_json_lines

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class RunResult:
    """What came of a run.

    Attributes:
        folder: The run folder.
        samples: Every sample of the run: ``system``, ``utterance``, and the ``parse`` or ``label`` that it was written
            from.
        metrics: System → name of a metric → value; a name with ``private/`` is of a figure that no ε covers.
        epsilon: ε that holds for all that was sampled together; None where the run is not private, or its ledger does
            not cover it.
        card: The privacy card (:func:`commands.privacy.verify.card`), with ``verified``; None without privacy.
        report: All that ``report.json`` holds, with the ε of each system.
        page: ``report.html``, for a browser.
    """

    folder: Path
    samples: pd.DataFrame
    metrics: dict[str, dict[str, Any]]
    epsilon: float | None
    card: dict[str, Any] | None
    report: dict[str, Any]
    page: Path


def open_run(run_dir: str | Path) -> RunResult:
    """Read what came of a run, without its experiment; nothing is computed or spent.

    Formal guarantees:
        ε is that of the report, and holds for samples that are those of their step: others are refused.

    Raises:
        UserError: There is no report yet, or a file is not what its step made.
    """
    import pandas as pd

    from commands.run_folder.run_folder import RunFolder
    from commands.run_folder.systems import in_order

    record = RunFolder(Path(run_dir).resolve())
    report, made = record.report(), record.manifest.samples()
    if report is None:
        raise UserError(
            f"{record.folder} has no report.json: give a run folder, and first the command that finishes it"
        )
    for entry in made.values():
        for why in record.manifest.changes(entry.path):
            raise UserError(f"{why}: nothing is read from it")
    rows = [
        {"system": name, **{key: line.get(key) for key in ("utterance", "parse", "label")}}
        for name in in_order(made)
        for _, line in read_json_lines(record.manifest.path(made[name]))
    ]
    return RunResult(
        folder=record.folder,
        samples=pd.DataFrame(rows).dropna(axis="columns", how="all"),
        metrics=report.get("metrics", {}),
        epsilon=(report.get("privacy") or {}).get("epsilon_if_all_systems_are_released"),
        card=report.get("card"),
        report=report,
        page=record.folder / "report.html",
    )
