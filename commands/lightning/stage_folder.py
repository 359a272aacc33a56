"""The folder of a training or a sampling: whose job it is, where it goes on, whether it may, its run of W&B."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from zipfile import is_zipfile

from callbacks.slurm_job import SlurmJob
from doppel.console.ledger import FILE_NAME
from doppel.console.say import say
from doppel.errors import UserError
from doppel.files import write_text
from doppel.privacy.ledger import Ledger
from doppel.run_folder import run_of

OWNER = "owner.json"
WANDB_ID = "wandb_id"


def claim(run_dir: Path, job: SlurmJob) -> None:
    """Make the folder of a stage a job's own, so that tasks of one array never resume one another.

    The first job that works in a folder writes its number there. The same job comes back after a requeue; a job that
    was submitted later may go on where an earlier one stopped; another task of the same array may not, for both would
    run now. All processes of a job may call this at once.

    Raises:
        UserError: The folder belongs to another task of the same array.
    """
    mine = json.dumps({"job": job.job, "task": job.task})
    owner = SlurmJob(**json.loads(_write_once(run_dir / OWNER, mine)))
    if owner.job == job.job and owner.task != job.task:
        raise UserError(
            f"{run_dir} belongs to array task {owner}, this is task {job}: give every task a --run_dir of its own, "
            "such as RUN/$SLURM_ARRAY_TASK_ID/STAGE"
        )
    if owner != job:
        write_text(run_dir / OWNER, f"{mine}\n")


def last_checkpoint(run_dir: Path, may_begin_anew: bool = False) -> str | None:
    """Return the checkpoint from which the training of a stage goes on; None if there is none yet.

    That is ``checkpoints/last.ckpt``. Lightning removes the file that this link names, then the link, and sets it anew:
    after a kill at such a moment it is set here, to the newest other checkpoint, which was whole before anything was
    removed. So a training that has no step left has its ``last.ckpt``, too. Where it was cut off, by a disk or a copy,
    it is set to the newest one that is whole, and stays beside it as ``last.ckpt.damaged``.

    Args:
        run_dir: Folder of the training.
        may_begin_anew: Return None where no file is whole. What is paid for is somebody's to mend; of a training that
            is not, a kill may leave such a file, which Lightning moves there from another disk.
    """
    folder = run_dir / "checkpoints"
    last = folder / "last.ckpt"
    others = sorted(filter(Path.is_file, folder.glob("*.ckpt")), key=lambda path: path.stat().st_mtime)
    is_damaged = last.is_file() and not is_zipfile(last)
    if is_damaged or may_begin_anew:
        others = list(filter(is_zipfile, others))
    if others and (is_damaged or not last.is_file()):
        if is_damaged:
            say(f"warning: {last} is damaged, and {others[-1].name} beside it is taken: steps after it stay charged")
            with contextlib.suppress(OSError):  # another rank was first, or a disk has no hard links
                os.link(last.resolve(), folder / f"{last.name}.damaged")
        link = folder / f".last.ckpt.{os.uname().nodename}.{os.getpid()}"
        link.symlink_to(others[-1].name)
        link.replace(last)
    return str(last) if last.is_file() and (others or not may_begin_anew) else None


def refuse_to_begin_again(run_dir: Path, is_private: bool) -> None:
    """Refuse a training from the start in the folder of another one, which it would overwrite, and pay for again.

    Raises:
        UserError: The folder holds a checkpoint.
    """
    found = last_checkpoint(run_dir, may_begin_anew=not is_private)
    if found is not None:
        cost = ", and every step would be charged again" if is_private else ""
        raise UserError(
            f"a training from the start would take the place of this checkpoint{cost}: give --ckpt_path last to resume "
            "from it, or another --run_dir to begin anew",
            about=found,
        )


class FailedStarts:
    """Starts of a training that paid and failed, or were killed: two alike would be paid for a third time.

    Args:
        words: Of the command; its configuration, and the checkpoint that it goes on from, tell starts apart.
    """

    def __init__(self, words: Sequence[str]) -> None:
        run_dir = Path(words[words.index("--run_dir") + 1])
        self._file, self._start = run_dir / ".failed", run_dir / ".start"
        self._ledger, self._last = Ledger(run_of(run_dir) / FILE_NAME).path, run_dir / "checkpoints" / "last.ckpt"
        self._config = Path(words[words.index("--config") + 1]) if "--config" in words else None

    def _size(self) -> int:
        return self._ledger.stat().st_size if self._ledger.is_file() else 0

    def begin(self) -> None:
        """Write down how it starts, for whoever sees it end.

        Raises:
            UserError: Two starts like this one have failed.
        """
        content = b"" if self._config is None else self._config.read_bytes()
        content += (str(self._last.stat().st_mtime_ns) if self._last.exists() else "").encode()
        line = hashlib.sha256(content).hexdigest()
        if self._file.is_file() and self._file.read_text(encoding="utf-8") == f"{line}\n" * 2:
            raise UserError(
                f"{self._file.parent.name} has failed twice at the same place, and each start spends a step: nothing "
                f"was started. Mend what the last message said; then delete {self._file}, and give the command again"
            )
        self._start.parent.mkdir(parents=True, exist_ok=True)
        self._start.write_text(f"{line} {self._size()}", encoding="utf-8")

    def note(self) -> None:
        """Count a start that has failed, if it has paid."""
        line, paid = self._start.read_text(encoding="utf-8").split()
        if self._size() > int(paid):
            told = self._file.read_text(encoding="utf-8") if self._file.is_file() else ""
            self._file.write_text(f"{line}\n" * (2 if told == f"{line}\n" else 1), encoding="utf-8")


def wandb_id(run_dir: Path, job: SlurmJob | None = None) -> str:
    """Return the id of a stage's W&B run; what goes on in the folder, such as a requeued job, goes on with that run.

    Returns:
        STAGE[-JOB_TASK]-RANDOM, written to the folder: at most 64 characters, and no two folders share one. The task is
        that of an array's job.
    """
    task = [] if job is None or job.task is None else [str(job)]
    stage = re.sub(r"[^A-Za-z0-9_.]", "_", run_dir.resolve().name)[:24]
    return _write_once(run_dir / WANDB_ID, "-".join([stage, *task, secrets.token_hex(4)]))


def _write_once(path: Path, text: str) -> str:
    """What the file says; ``text`` if it was not there. Of several processes one wins, and all return its text."""
    draft = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}")
    draft.write_text(f"{text}\n", encoding="utf-8")
    try:
        os.link(draft, path)  # the file is there with its content, or not at all
    except FileExistsError:
        text = path.read_text(encoding="utf-8").strip()
    finally:
        draft.unlink()
    return text
