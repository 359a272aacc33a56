"""What a job notes of its step, before and after the tasks that ``srun`` starts: marks, manifest, failures, requeues.

``python -m commands.run.execution.in_job begin|end KIND RUN STEP …``, called by ``slurm/job.sh``; it starts nothing.
"""

from __future__ import annotations

import glob
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from commands.run.execution.execute import begin, end
from commands.run_folder.manifest_writer import declaration
from commands.run_folder.steps import EMBEDDED
from doppel.console.again import AGAIN_FILE, EXIT_STATUS
from doppel.console.say import say
from doppel.errors import UserError
from doppel.files import write_text

MOST_REQUEUES = 3


def _may_requeue(run: Path, name: str) -> bool:
    """Whether a step may go back into the queue: no more than three times in a row without anything to show for it.

    What it has to show are its files, and parts beside them: the time of the newest.
    """
    told = json.loads(declaration(run, name).read_text(encoding="utf-8")) if declaration(run, name).is_file() else {}
    places = [glob.escape(str(run / file["path"])) for file in told.get("writes", ())]
    folders = {os.path.dirname(place) for place in places}
    patterns = [*(f"{place}*" for place in places), *(f"{folder}/{EMBEDDED}/**" for folder in folders)]
    found = (path for pattern in patterns for path in glob.glob(pattern, recursive=True))
    times = [os.stat(path).st_mtime_ns for path in found if os.path.exists(path)]  # glob lists a/** as a/ itself
    seen, note = str(max(times, default=0)), run / "slurm" / f".{name}.requeues"
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
    verb, kind, folder, name, *rest = argv
    run = Path(folder)
    try:
        if verb == "begin":
            begin(kind, rest)
            return 0
        status, seconds, *words = rest
        if int(status) == EXIT_STATUS or Path(os.environ.get(AGAIN_FILE, "")).is_file():
            return EXIT_STATUS if _may_requeue(run, name) else 1
        mark = run / ".done" / name if declaration(run, name).is_file() else None
        return end(kind, mark, words, int(status), int(seconds))
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
