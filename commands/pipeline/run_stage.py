"""One stage, once: what ``cli.py run --local`` does for each and what every job does.

By hand, or in a job: ``python -m commands.pipeline.run_stage KIND MARK COMMAND…``, where the code is on ``PYTHONPATH``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from commands.pipeline.forks import Forked, Forks
from commands.pipeline.manifest import enter
from doppel.console.parent import VARIABLE
from doppel.errors import UserError


def run_stage(
    kind: str,
    mark: Path | None,
    command: Sequence[str],
    cwd: Path | None = None,
    stdout: int | None = None,
    forks: Forks | None = None,
) -> int:
    """Run a command unless its mark says that it is done; write down there how many seconds it took.

    What the stage has left is entered into the run's manifest before that
    (:func:`~commands.pipeline.manifest.enter`), by this process alone, however many tasks the command had.

    A fit goes on from the last checkpoint of its ``--run_dir``, if there is one: decided now, so that a requeued job
    resumes. In a job, fit and predict run under srun, a task for each device.

    Args:
        kind: As :class:`~commands.pipeline.steps.Step` has it.
        mark: RUN/.done/NAME; None runs the command every time.
        command: Words of the command.
        cwd: Where it runs.
        stdout: Where its output goes, in place of this process's.
        forks: Who starts it, where it is a command of ``cli.py``, in place of a new interpreter.

    Returns:
        Exit status; a command that fails leaves no mark, and 75 says that it was preempted.
    """
    if mark is not None and mark.exists():
        return 0
    words, launch = list(command), []
    if kind == "fit":
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
    process: Forked | subprocess.Popen[bytes]
    if forks is not None:
        process = forks.start(words[2:], stdout)
    else:
        environment = {**os.environ, "DOPPEL_RUN": "1"}
        if "SLURM_JOB_ID" not in os.environ:  # a job ends all that it started, and some of it saves first
            environment[VARIABLE] = str(os.getpid())
        process = subprocess.Popen([*launch, *words], cwd=cwd, stdout=stdout, env=environment)
    before = signal.signal(signal.SIGTERM, lambda *_: process.terminate())  # whoever ends this ends the command
    try:
        status = process.wait()
    except KeyboardInterrupt:  # the command got it too, and saves
        while process.poll() is None:
            with suppress(KeyboardInterrupt):
                process.wait()
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)
    if status == 0 and mark is not None:
        enter(mark.parent.parent, mark.name)
        mark.parent.mkdir(parents=True, exist_ok=True)
        partial = mark.with_name(f"{mark.name}.partial")
        partial.write_text(f"{int(time.time() - start)}\n", encoding="utf-8")
        partial.replace(mark)
    return status if status >= 0 else 128 - status


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
