"""Who may work in a run folder, whether it has begun, and which ledger pays for it."""

from __future__ import annotations

import os
from pathlib import Path

from filelock import FileLock, Timeout

from doppel.console.ledger import FILE_NAME, SITE
from doppel.errors import UserError
from doppel.privacy.ledger import Ledger, join
from doppel.run_folder import of_stages, run_of

_PATIENCE = 5  # seconds: a requeued job may come before its predecessor is gone


def hold(folder: Path, file: str | None = None) -> FileLock:
    """Take a folder for this process, or a file to be made in it, until the lock is released or the process ends.

    Raises:
        UserError: Another process works in it, or it cannot be written to.
    """
    name, place = (".lock", folder) if file is None else (f".{file}.lock", folder / file)
    lock = FileLock(folder / name, mode=0o600)
    try:
        lock.acquire(timeout=_PATIENCE)
    except Timeout:
        twice = "spend twice: wait for it, or give another folder" if file is None else "mix their rows: wait for it"
        raise UserError(f"{place} is in use by another process, and two would {twice}") from None
    except OSError as error:
        raise UserError(f"{folder} cannot be written to ({error.strerror or error}): give another folder") from None
    return lock


def has_begun(run: Path) -> bool:
    """Return whether a run has what other settings would contradict: a finished step, a checkpoint, a paid step.

    Formal guarantees:
        A private step's line is in the ledger before anything is computed of its data, and a torn line counts as a
        step. A run without such a line has therefore released nothing, and may begin anew under any settings: nothing
        is spent twice. One line, one mark of a finished step or one checkpoint is enough to refuse that.
    """
    ledger = Ledger(run / FILE_NAME)
    return (
        any((run / ".done").glob("*"))
        or bool(of_stages(run, "checkpoints/*.ckpt"))
        or any(record.done_steps for record in ledger.mechanisms.values())
    )


def ledger_of_run(run_dir: Path, given: str | None) -> str:
    """Return the ledger of a stage, which its run has joined if it serves many runs.

    Args:
        run_dir: Folder of the stage, in the run folder.
        given: What the configuration asks for; None: $DOPPEL_LEDGER where the run begins, else RUN/ledger.jsonl.
    """
    own = run_of(run_dir) / FILE_NAME
    shared = given or (None if own.exists() else os.environ.get(SITE))
    if shared is None:
        return str(own)
    path = Path(os.path.expandvars(shared))
    if path.parent == run_dir:  # an audit has a ledger of its own
        return str(path)
    join(own, path)
    return str(own)
