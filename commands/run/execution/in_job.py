"""What a job notes of its step, before and after the tasks that ``srun`` starts: marks, manifest, failures, requeues.

``python -m commands.run.execution.in_job begin|end KIND RUN STEP …``, called by ``slurm/job.sh``; it starts nothing.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from commands.lightning.stage_folder import FailedStarts, last_checkpoint
from commands.run.execution.execute import keep_outcome, tell_killed
from commands.run_folder.manifest_writer import declaration
from commands.run_folder.steps import EMBEDDED
from doppel.console.again import AGAIN_FILE, EXIT_STATUS
from doppel.console.say import say
from doppel.errors import UserError
from doppel.files import write_text

MOST_REQUEUES = 3


def begin(kind: str, words: Sequence[str]) -> None:
    """Refuse a training that has failed twice at the same place; say where it goes on.

    Raises:
        UserError: It has.
    """
    if kind != "fit":
        return
    FailedStarts(words).begin()
    stage = Path(words[words.index("--run_dir") + 1])
    if last_checkpoint(stage) is not None:
        say(f"   resuming from {stage.name}/checkpoints/last.ckpt")


def end(kind: str, run: Path, name: str, status: int, seconds: int, words: Sequence[str]) -> int:
    """Note how the tasks have ended.

    Args:
        kind: Of the step.
        run: Folder of the run.
        name: The step's.
        status: Of ``srun``: the largest of its tasks', where one has ended the others.
        seconds: That they took.
        words: Of the command.

    Returns:
        Exit status of the job; 75 asks for a requeue.
    """
    if status == EXIT_STATUS or Path(os.environ.get(AGAIN_FILE, "")).is_file():
        return EXIT_STATUS if may_requeue(run, name) else 1
    if kind == "fit" and status not in (0, 130, 143):
        FailedStarts(words).note()
    if status == 137:
        tell_killed(kind)
    if status == 0 and declaration(run, name).is_file():
        keep_outcome(run / ".done" / name, seconds)
    return status


def may_requeue(run: Path, name: str) -> bool:
    """Whether a step may go back into the queue: no more than three times in a row without anything to show for it.

    What it has to show are its files, and parts beside them, by size and time.
    """
    told = json.loads(declaration(run, name).read_text(encoding="utf-8")) if declaration(run, name).is_file() else {}
    places = [glob.escape(str(run / file["path"])) for file in told.get("writes", ())]
    folders = {os.path.dirname(place) for place in places}
    patterns = [*(f"{place}*" for place in places), *(f"{folder}/{EMBEDDED}/*" for folder in folders)]
    files = sorted(path for pattern in patterns for path in glob.glob(pattern))
    stats = [(path, *(getattr(os.stat(path), key) for key in ("st_size", "st_mtime_ns"))) for path in files]
    seen, note = hashlib.sha256(repr(stats).encode()).hexdigest(), run / "slurm" / f".{name}.requeues"
    before, _, number = (note.read_text(encoding="utf-8") if note.is_file() else "").partition(" ")
    count = int(number) + 1 if before == seen else 0
    write_text(note, f"{seen} {count}")
    if count >= MOST_REQUEUES:
        say(
            f"error: {name} was requeued {MOST_REQUEUES} times and has saved nothing since: it is not requeued again. "
            "Give it more time (--slurm fit_time=… predict_time=… tool_time=…), or more of it to save (notice_s=…); "
            "then give the command again",
            is_error=True,
        )
        note.unlink()
        return False
    return True


def main(argv: Sequence[str]) -> int:
    """Note what the command line says."""
    verb, kind, run, name, *rest = argv
    try:
        if verb == "begin":
            begin(kind, rest)
            return 0
        status, seconds, *words = rest
        return end(kind, Path(run), name, int(status), int(seconds), words)
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
