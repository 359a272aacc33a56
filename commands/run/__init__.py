"""Runs of an experiment: what it says, its steps, and who runs them. :func:`run` is the command ``run`` from Python."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Run:
    """What came of a run.

    Attributes:
        folder: The run folder.
        samples: Every sample of the run: ``system``, ``utterance``, and the ``parse`` or ``label`` that it was written
            from.
        metrics: System → name of a metric → value; a name with ``private/`` is of a figure that no ε covers.
        epsilon: ε that holds for all that was sampled together; None where the run is not private, or its ledger does
            not cover it.
        report: All that ``report.json`` holds, with the ε of each system.
        page: ``report.html``, for a browser.
    """

    folder: Path
    samples: pd.DataFrame
    metrics: dict[str, dict[str, Any]]
    epsilon: float | None
    report: dict[str, Any]
    page: Path


def run(experiment: str | Path, run_dir: str | Path, *, verbose: bool = False, **changes: Any) -> Run:
    """Train, sample and evaluate an experiment here, as ``python cli.py run EXPERIMENT RUN_DIR --local`` does.

    Given again, it skips what is done. A run that is finished is read, and spends nothing.

    Args:
        experiment: File of configs/experiments, or experiment.yaml of a run.
        run_dir: Folder of the run.
        verbose: Also print every metric and the report's table.
        changes: Fields of the experiment by name, ``epsilon=3, systems=["one_stage"]``. Those of its sections may stand
            in ``set``, ``set={"data.train_path": "mine.csv", "data.unit": "user"}``, or as mappings of them.

    Returns:
        What came of it.

    Raises:
        UserError: A setting or a file cannot be used, or a step has failed, which said why.
    """
    import json
    import os

    import pandas as pd

    from commands.run import launch
    from commands.runs.run_record import RunRecord
    from commands.runs.systems import in_order
    from doppel.errors import UserError
    from doppel.files import read_json_lines

    changes = {**changes.pop("set", {}), **changes}
    words = [f"{name}={json.dumps(value, default=os.fspath)}" for name, value in changes.items()]
    status = launch.run(Path(experiment), Path(run_dir), local=True, set=words, verbose=verbose)
    if status:
        raise UserError(f"the run ended with status {status}, see above; the same call resumes there")
    record = RunRecord(Path(run_dir).resolve())
    made, report = record.manifest.samples(), record.report() or {}
    rows = [
        {"system": name, **{key: line.get(key) for key in ("utterance", "parse", "label")}}
        for name in in_order(made)
        for _, line in read_json_lines(record.manifest.path(made[name]))
    ]
    epsilon = (report.get("privacy") or {}).get("epsilon_if_all_systems_are_released")
    samples = pd.DataFrame(rows).dropna(axis="columns", how="all")
    return Run(record.folder, samples, report.get("metrics", {}), epsilon, report, record.folder / "report.html")
