"""Commands that begin with their imports done: each is forked from one process that imports for all of them.

PyTorch, Lightning and transformers take seconds of CPU to import, in every step of a run anew.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import IO, NoReturn

from doppel.console import interrupt
from doppel.console.parent import end_with

#: What most steps import. Not Weights & Biases: its import makes a temporary folder, which the first command to end
#: would remove under all later ones.
MODULES = (
    *(
        "commands.lightning.cli",
        "commands.lightning.closing",
        "commands.quality.evaluate",
        "lightning_modules.causal_lm",
    ),
    *("datamodules.dialogue_data_module", "datamodules.prompt_data_module", "callbacks.synthetic_writer"),
    *("callbacks.wandb_lineage", "callbacks.preemption", "transformers.models.gpt2.modeling_gpt2", "sklearn.cluster"),
)
_SERVE = "import sys; sys.path[0] = sys.argv[1]; from commands.pipeline.forks import serve; serve(*sys.argv[2:])"


class Forks:
    """A process that imports what steps need, computes nothing, and forks each command that it is asked for.

    A command is a process of its own, as if it had been started anew: only modules are shared. Since the process that
    forks runs nothing, there is no thread and no handle of a GPU that a fork would copy.

    Formal guarantees:
        Noise, samples of units and seeds of trainings come from the operating system's entropy, which is read after the
        fork, so two commands never share them. NumPy's generator, which each process would seed when it is imported,
        is seeded again in each command.

    Whoever is killed takes what it has forked along (:func:`~doppel.console.parent.end_with`), so that nobody goes on
    with a run that another one has begun anew.

    A context manager; the process starts with the first command.

    Args:
        python: The interpreter.
        root: The folder of ``cli.py``.
        cwd: Where commands run.
        modules: What is imported before the first command.
    """

    def __init__(self, python: str, root: Path, cwd: Path, modules: Sequence[str] = MODULES) -> None:
        self._server_words, self._cwd = [python, "-c", _SERVE, str(root), ",".join(modules)], cwd
        self._socket, self._theirs = socket.socketpair()
        self._answers = self._socket.makefile("r", encoding="utf-8")
        self._server: subprocess.Popen[bytes] | None = None
        self._is_ready = False

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._answers.close()
        self._socket.close()
        self._theirs.close()
        if self._server is not None:
            self._server.wait()

    def start(self, words: Sequence[str], stdout: int | None = None) -> Forked:
        """Have ``cli.py`` called with words; its output goes where this process's goes, or to ``DEVNULL``."""
        if self._server is None:
            channel, environment = self._theirs.fileno(), {**os.environ, "DOPPEL_RUN": "1"}
            server = [*self._server_words, str(channel), str(os.getpid())]
            self._server = subprocess.Popen(server, cwd=self._cwd, env=environment, pass_fds=[channel])
            self._theirs.close()
        return Forked(self, words, is_quiet=stdout == subprocess.DEVNULL)

    def ask(self, request: dict[str, object]) -> int | None:
        """Have a command forked, once the imports are done; its process id, None if the server has ended before."""
        if not self._is_ready:
            self._is_ready = self.answer() is not None
        if self._is_ready:
            with suppress(BrokenPipeError):
                self._socket.sendall(f"{json.dumps(request)}\n".encode())
                return self.answer()
        return None

    def answer(self) -> int | None:
        """A number that the server sends; None at its end."""
        line = self._answers.readline()
        return int(line) if line else None

    def stop(self) -> None:
        """Ask the server to end, where it has forked nothing that runs."""
        assert self._server is not None, "nothing was started"
        self._server.terminate()

    def end(self) -> int:
        """The exit status of the server, which ends now."""
        assert self._server is not None, "nothing was started"
        self._server.terminate()
        return self._server.wait()


class Forked:
    """A command, with as much of ``subprocess.Popen`` as whoever waits for it needs.

    Args:
        forks: Who forks it.
        words: Of ``cli.py``.
        is_quiet: Whether its standard output is thrown away.
    """

    def __init__(self, forks: Forks, words: Sequence[str], is_quiet: bool) -> None:
        self._forks = forks
        self._request: dict[str, object] | None = {"words": list(words), "is_quiet": is_quiet}
        self._pid: int | None = None
        self._status: int | None = None

    def wait(self) -> int:
        """Its exit status, as ``Popen`` has it, when it has ended."""
        try:
            if self._request is not None and self._status is None:
                self._pid = self._forks.ask(self._request)
                self._request = None
        except KeyboardInterrupt:  # before it began
            self._forks.end()
            self._status = 130
            raise
        if self._status is None:
            status = self._forks.answer() if self._pid is not None else None
            self._status = self._forks.end() if status is None else status
        return self._status

    def poll(self) -> int | None:
        """Its exit status, if somebody has waited for it."""
        return self._status

    def terminate(self) -> None:
        """Ask it to end."""
        if self._pid is None:
            self._forks.stop()
        else:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGTERM)


def serve(modules: str, channel: str, parent: str) -> None:
    """What the process that forks does: import, then fork and wait for each command that is asked for.

    Args:
        modules: With commas between them.
        channel: File descriptor of a socket: requests come as lines of JSON; the answers are a line when the imports
            are done, then for each command its process id and its exit status.
        parent: Process id of who asks.
    """
    end_with(int(parent))
    sys.exit(interrupt.one_line(lambda: _serve(modules.split(","), int(channel))))


def _serve(modules: Sequence[str], channel: int) -> int:
    for name in filter(None, modules):
        with suppress(ImportError):  # an extra that is not installed; a command that needs it says so
            import_module(name)
    gc.freeze()  # what was imported is no garbage, and is not copied to look for some
    is_heard = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    if is_heard:  # from here on Ctrl-C is for the command, and for whoever waits for it
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(channel), "w", encoding="utf-8")
    requests = os.fdopen(channel, "r", encoding="utf-8")
    _say(answers, 0)
    own = os.getpid()
    while line := requests.readline():
        request = json.loads(line)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        pid = os.fork()
        if pid == 0:
            end_with(own)
            requests.close()
            answers.close()
            if is_heard:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            _call(request["words"], request["is_quiet"])
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        _say(answers, pid)
        _say(answers, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    return 0


def _call(words: Sequence[str], is_quiet: bool) -> NoReturn:
    """Be a command, from the first line of ``cli.py`` to the end of the process."""
    import numpy as np

    np.random.seed()
    if is_quiet:
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, 1)
        os.close(sink)
    program = os.path.join(sys.path[0], "cli.py")
    sys.argv = [program, *words]
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    runpy.run_path(program, run_name="__main__")
    sys.exit(0)


def _say(answers: IO[str], number: int) -> None:
    answers.write(f"{number}\n")
    answers.flush()
