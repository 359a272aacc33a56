"""Runs of an experiment: what it says, its steps, and who runs them. From Python: :func:`run`, :func:`open_run`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commands.report.run_result import RunResult, open_run

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["RunResult", "open_run", "run"]


def run(
    experiment: str | Path,
    run_dir: str | Path,
    *,
    data: pd.DataFrame | Iterable[Mapping[str, Any]] | Mapping[str, Any] | None = None,
    verbose: bool = False,
    **changes: Any,
) -> RunResult:
    """Train, sample and evaluate an experiment here, as ``python cli.py run EXPERIMENT RUN_DIR --local`` does.

    Given again, it skips what is done. A run that is finished is read, and spends nothing.

    Args:
        experiment: File of configs/experiments, or experiment.yaml of a run.
        run_dir: Folder of the run.
        data: The private rows, a pandas frame or a list of dicts, in the place of a ``data.train_path``. They are kept
            in the run folder, in a file for their owner alone. (A mapping is the section ``data`` of the experiment.)
        verbose: Also print every metric and the report's table.
        changes: Fields of the experiment by name, ``epsilon=3, systems=["one_stage"]``. Those of its sections may stand
            in ``set``, ``set={"data.train_path": "mine.csv", "data.unit": "user"}``, or as mappings of them.

    Returns:
        What came of it.

    Raises:
        UserError: A setting or a file cannot be used, the run was begun with other rows, or a step has failed, which
            said why.
    """
    import json
    import os

    from commands.run import launch
    from commands.run.execution.settle import make_folder
    from commands.run_folder.manifest_writer import enter_rows
    from datamodules.reading.held_rows import as_json_lines
    from doppel.console.dispatch import QUIET
    from doppel.errors import UserError

    os.environ.update(QUIET | dict(os.environ))
    changes = {**changes.pop("set", {}), **changes}
    if isinstance(data, Mapping | str | Path):
        changes["data"] = data
    elif "data.train_path" in changes and data is not None:
        raise UserError("data holds the rows, and data.train_path names a file of others: give one of them")
    elif data is not None:
        changes["data.train_path"] = enter_rows(make_folder(Path(run_dir).absolute()), as_json_lines(data))
    told = {name: json.dumps(value, default=os.fspath, ensure_ascii=False) for name, value in changes.items()}
    words = [  # YAML takes no control character as it is, and some as the end of a line
        f"{name}=" + "".join(sign if sign.isprintable() else f"\\U{ord(sign):08x}" for sign in text)
        for name, text in told.items()
    ]
    status = launch.run(Path(experiment), Path(run_dir), local=True, set=words, verbose=verbose)
    if status:
        raise UserError(f"the run ended with status {status}, see above; the same call resumes there")
    return open_run(run_dir)
