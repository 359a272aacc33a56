"""The report of a pipeline as a Weights & Biases run of its own."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from callbacks.wandb_artifacts import artifact, use_artifact
from callbacks.wandb_offline import begin
from commands.lightning.stage_folder import wandb_id
from commands.report.html import PAGE
from commands.run_folder.run_folder import RunFolder

if TYPE_CHECKING:
    from wandb import Table

_CONFIG = ("experiment", "seed", "epsilon", "commit", "base_model", "num_samples")
_NUM_SAMPLES = 100  # of each system, in a table


def log_report(record: RunFolder, report: dict[str, Any]) -> bool:
    """Log ``report.json`` as an artifact that came from the synthetic files, and its metrics as the run's summary.

    Only where the stages of the pipeline have W&B runs: offline if theirs are, and in their project. Figures named
    ``private/…`` are left out of the summary, and a report that has them is not named, for a digest tells whether a
    guess is right. Where the privacy card is verified, the page, which has none of them, is sent whole, as a panel too,
    beside a table of samples; else all stays here.

    Returns:
        Whether there was anything to log to.
    """
    logged = _logged(record)
    if logged is None:
        return False
    import wandb

    mode, project, entity = logged
    folder = record.folder / "report"
    folder.mkdir(mode=0o700, exist_ok=True)
    settings: dict[str, Any] = {
        "project": project,
        "entity": entity,
        "dir": str(folder),
        "id": wandb_id(folder),
        "resume": "allow",
        "name": "report",
        "group": record.group,
        "job_type": "report",
        "config": {name: report[name] for name in _CONFIG},
        "mode": mode,
        "settings": wandb.Settings(silent=True),
    }
    with begin(lambda: wandb.init(**settings), settings) as run:
        for path in map(record.synthetic, report["metrics"]):
            if path is not None and path.is_file():
                use_artifact(run, artifact(path, "synthetic"))
        for system, metrics in report["metrics"].items():
            numbers = {k: v for k, v in metrics.items() if isinstance(v, int | float) and not k.startswith("private/")}
            run.summary.update({f"{system}/{name}": value for name, value in numbers.items()})
        for system, spent in (report["privacy"] or {"systems": {}})["systems"].items():
            run.summary.update({f"{system}/epsilon": spent["epsilon"]})
        if not any(name.startswith("private/") for metrics in report["metrics"].values() for name in metrics):
            run.log_artifact(artifact(record.folder / "report.json", "report"))
        if (record.folder / PAGE).is_file():
            is_verified = bool((report.get("card") or {}).get("verified"))
            run.log_artifact(artifact(record.folder / PAGE, "page", upload=is_verified))
            if is_verified:
                page = (record.folder / PAGE).read_text(encoding="utf-8")
                run.log({"page": wandb.Html(page, inject=False), "samples": _samples(record, report["metrics"])})
    return True


def _samples(record: RunFolder, systems: Iterable[str]) -> Table:
    """The first samples of each system."""
    import wandb

    rows = []
    for system in systems:
        path = record.synthetic(system)
        if path is not None and path.is_file():
            with path.open(encoding="utf-8") as file:
                found = [json.loads(line) for line in itertools.islice(file, _NUM_SAMPLES)]
            rows += [[system, line.get("utterance"), line.get("parse") or line.get("label")] for line in found]
    return wandb.Table(columns=["system", "utterance", "written from"], data=rows)


def _logged(record: RunFolder) -> tuple[Literal["online", "offline"], str, str | None] | None:
    """Whether the stages logged to W&B online, to which project, and whose; None: they did not log."""
    online = any(record.folder.rglob("wandb/run-*"))
    if not online and not any(record.folder.rglob("wandb/offline-run-*")):
        return None
    loggers = (logger for config in record.trainings for logger in config.of_trainer("logger", "WandbLogger"))
    first = next(loggers, {})
    return "online" if online else "offline", str(first.get("project") or "doppel"), first.get("entity")
