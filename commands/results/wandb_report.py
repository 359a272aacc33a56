"""The report of a pipeline as a Weights & Biases run of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from callbacks.wandb_artifacts import artifact, use_artifact
from commands.launch.run_folder import wandb_id


def log_report(run_dir: Path, report: dict[str, Any], synthetic: list[Path]) -> bool:
    """Log ``report.json`` as an artifact that came from the synthetic files, and its metrics as the run's summary.

    Only where the stages of the pipeline have W&B runs: offline if theirs are, and in their project. Figures named
    ``private/…`` are left out of the summary; they are in the report, whose content stays where it is.

    Args:
        run_dir: Folder of the pipeline, which holds ``report.json``.
        report: Its content.
        synthetic: Files that were evaluated.

    Returns:
        Whether there was anything to log to.
    """
    offline, online = (sorted(run_dir.glob(f"*/wandb/{kind}run-*")) for kind in ("offline-", ""))
    if not offline and not online:
        return False
    import wandb

    folder = run_dir / "report"
    folder.mkdir(mode=0o700, exist_ok=True)
    run = wandb.init(
        project=_project(run_dir),
        dir=str(folder),
        id=wandb_id(folder),
        resume="allow",
        name="report",
        group=run_dir.resolve().name,
        job_type="report",
        config={
            name: report[name] for name in ("experiment", "seed", "epsilon", "commit", "base_model", "num_samples")
        },
        mode="online" if online else "offline",
    )
    with run:
        for path in synthetic:
            if path.is_file():
                use_artifact(run, artifact(path, "synthetic"))
        for system, metrics in report["metrics"].items():
            numbers = {k: v for k, v in metrics.items() if isinstance(v, int | float) and not k.startswith("private/")}
            run.summary.update({f"{system}/{name}": value for name, value in numbers.items()})
        for system, spent in (report["privacy"] or {"systems": {}})["systems"].items():
            run.summary.update({f"{system}/epsilon": spent["epsilon"]})
        run.log_artifact(artifact(run_dir / "report.json", "report"))
    return True


def _project(run_dir: Path) -> str:
    for path in sorted(run_dir.glob("*/config.yaml")):
        loggers = yaml.safe_load(path.read_text(encoding="utf-8"))["trainer"]["logger"]
        for logger in loggers if isinstance(loggers, list) else [loggers]:
            if isinstance(logger, dict) and logger["class_path"].endswith("WandbLogger"):
                return str(logger["init_args"]["project"])
    return "doppel"
