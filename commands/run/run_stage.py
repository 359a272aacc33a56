"""One stage, once: what ``cli.py run --local`` does for each and what every job does.

By hand, or in a job: ``python -m commands.run.run_stage KIND MARK COMMAND…``, where the code is on ``PYTHONPATH``.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from commands.run.forks import Forked
from commands.runs.manifest import enter
from doppel.console.parent import VARIABLE
from doppel.errors import UserError
from doppel.privacy.ledger import Ledger


def run_stage(
    kind: str,
    mark: Path | None,
    command: Sequence[str],
    cwd: Path | None = None,
    stdout: int | None = None,
    is_forked: bool = False,
) -> int:
    """Run a command unless its mark says that it is done; write down there how many seconds it took.

    What the stage has left is entered into the run's manifest before that
    (:func:`~commands.runs.manifest.enter`), by this process alone, however many tasks the command had.

    A fit goes on from the last checkpoint of its ``--run_dir``, if there is one: decided now, so that a requeued job
    resumes. In a job, fit and predict run under srun, a task for each device.

    Args:
        kind: As :class:`~commands.runs.steps.Step` has it.
        mark: RUN/.done/NAME; None runs the command every time.
        command: Words of the command.
        cwd: Where it runs.
        stdout: Where its output goes, in place of this process's.
        is_forked: Whether it is forked with its imports done, in place of a new interpreter of ``cli.py``.

    Returns:
        Exit status; a command that fails leaves no mark, and 75 says that it was preempted.
    """
    if mark is not None and mark.exists():
        return 0
    words, launch = list(command), []
    failures = None
    if kind == "fit":
        failures = _Failures(words)
        failures.refuse_third()
        last = Path(words[words.index("--run_dir") + 1]) / "checkpoints" / "last.ckpt"
        if last.exists() or last.is_symlink():
            sys.stdout.write(f"   resuming from {last.parent.parent.name}/checkpoints/last.ckpt\n")
            words += ["--ckpt_path", "last"]
    if os.environ.get("DOPPEL_SRUN") and kind in ("fit", "predict"):
        nodes = os.environ["SLURM_JOB_NUM_NODES"] if kind == "fit" else "1"
        tasks = os.environ.get("SLURM_NTASKS_PER_NODE", "1")
        launch = ["srun", "--kill-on-bad-exit=1", f"--nodes={nodes}", f"--ntasks={int(nodes) * int(tasks)}"]
        launch += [f"--ntasks-per-node={tasks}", f"--cpus-per-task={os.environ.get('SLURM_CPUS_PER_TASK', '1')}"]
        # Until the program listens, SIGUSR1 must not end it: the job would fail, and nothing would requeue it.
        launch += ["bash", "-c", 'trap "" USR1; exec "$@"', "task"]
        words += ["--trainer.num_nodes", nodes, "--trainer.devices", tasks]
    sys.stdout.flush()
    start = time.time()
    before = signal.getsignal(signal.SIGTERM)
    process: Forked | subprocess.Popen[bytes] | None = None
    try:
        if is_forked:
            process = Forked(words[1:], cwd, is_quiet=stdout == subprocess.DEVNULL)
            process.start()
        else:
            environment = {**os.environ, "DOPPEL_RUN": "1"}
            if "SLURM_JOB_ID" not in os.environ:  # a job ends all that it started, and some of it saves first
                environment[VARIABLE] = str(os.getpid())
            process = subprocess.Popen([*launch, *words], cwd=cwd, stdout=stdout, env=environment)
        end = process.terminate
        signal.signal(signal.SIGTERM, lambda *_: end())  # whoever ends this ends the command
        status = process.wait()
    except KeyboardInterrupt:  # the command got it too, and saves
        while process is not None and process.pid is not None and process.poll() is None:
            with suppress(KeyboardInterrupt):
                process.wait()
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)
    if failures is not None and 0 < status < 128 and status not in (75, 130):
        failures.note()
    if status == 0 and mark is not None:
        enter(mark.parent.parent, mark.name)
        mark.parent.mkdir(parents=True, exist_ok=True)
        partial = mark.with_name(f"{mark.name}.partial")
        partial.write_text(f"{int(time.time() - start)}\n", encoding="utf-8")
        partial.replace(mark)
    return status if status >= 0 else 128 - status


class _Failures:
    """Starts of a training that paid and failed: two that were alike would fail, and be paid for, a third time.

    Args:
        words: Of the command; its configuration, and the checkpoint that it goes on from, tell starts apart.
    """

    def __init__(self, words: Sequence[str]) -> None:
        run_dir = Path(words[words.index("--run_dir") + 1])
        self._file, self._ledger = run_dir / ".failed", Ledger(run_dir.parent / "ledger.jsonl").path
        last = run_dir / "checkpoints" / "last.ckpt"
        config = Path(words[words.index("--config") + 1]).read_bytes() if "--config" in words else b""
        content = config + (last.resolve().name if last.exists() else "").encode()
        self._line = f"{hashlib.sha256(content).hexdigest()}\n"
        self._paid = self._size()

    def _size(self) -> int:
        return self._ledger.stat().st_size if self._ledger.is_file() else 0

    def refuse_third(self) -> None:
        """Refuse to start where two starts like this one have failed."""
        if self._file.is_file() and self._file.read_text(encoding="utf-8") == self._line * 2:
            raise UserError(
                f"{self._file.parent.name} has failed twice at the same place, and each start spends a step: nothing "
                f"was started. Mend what the last message said; then delete {self._file}, and give the command again"
            )

    def note(self) -> None:
        """Count this one, if it has paid."""
        if self._size() > self._paid:
            told = self._file.read_text(encoding="utf-8") if self._file.is_file() else ""
            self._file.write_text(self._line * (2 if told == self._line else 1), encoding="utf-8")


def main(argv: Sequence[str]) -> int:
    """Run a stage as the command line says."""
    kind, mark, *command = argv
    name = Path(mark).name
    if mark != "-":
        done = Path(mark).exists()
        sys.stdout.write(f"── {name}: done already, skipped\n" if done else f"── {name}\n")
    try:
        return run_stage(kind, None if mark == "-" else Path(mark), command)
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
