"""Send Weights & Biases runs that were made offline."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from commands.pipeline.run_folder import WANDB_ID
from doppel.errors import UserError


def sync(run_dir: Path, *, dry_run: bool = False) -> None:
    """Send the offline Weights & Biases runs of a pipeline, or of many.

    The order is that of their start: what a run has read was logged by a run before it. All pieces of a run, of which
    every requeue leaves one, are sent together, and W&B appends them. What was sent before is left out.

    Args:
        run_dir: Folder of a pipeline, or one that holds several.
        dry_run: List what would be sent, and send nothing.

    Raises:
        UserError: There is no such folder, nothing in it, or W&B took less than all.
    """
    if not run_dir.is_dir():
        raise UserError(f"no folder {run_dir}: give the folder of a pipeline, such as runs/quickstart")
    pieces = offline_runs(run_dir)
    if not pieces:
        raise UserError(f"{run_dir} has no offline W&B runs: a run with trainer.logger.init_offline=false is sent")
    for name, folders in pieces.items():
        waiting = [folder for folder in folders if not _is_sent(folder)]
        sys.stdout.write(f"{name}: {len(waiting)} of {len(folders)} pieces to send\n")
        if not waiting or dry_run:
            continue
        command = [sys.executable, "-m", "wandb", "sync", *map(str, waiting)]
        status = subprocess.call(command, env={**os.environ, "WANDB_MODE": "online", "WANDB_RESUME": "allow"})
        if status != 0 or not all(_is_sent(folder) for folder in waiting):
            raise UserError(
                f"W&B did not take {name}: log in with `wandb login`, on a node that reaches it, and run this again; "
                "what was sent is not sent twice"
            )


def offline_runs(run_dir: Path) -> dict[str, list[Path]]:
    """Folders of the pieces of each run, by STAGE/ID; runs and pieces in the order of their start."""
    pieces: dict[str, list[Path]] = {}
    found = [path for path in run_dir.rglob("offline-run-*") if path.parent.name == "wandb" and path.is_dir()]
    for folder in sorted(found, key=_start):
        stage = folder.parent.parent.relative_to(run_dir)
        pieces.setdefault(f"{stage}/{folder.name.split('-', 3)[3]}", []).append(folder)
    return pieces


def _start(folder: Path) -> tuple[str, int]:
    """When a piece began: offline-run-DATE_TIME-ID has the second, the id's file of the stage more."""
    known = folder.parent.parent / WANDB_ID
    return folder.name.split("-")[2], known.stat().st_mtime_ns if known.is_file() else 0


def _is_sent(folder: Path) -> bool:
    return any(folder.glob("*.wandb.synced"))
