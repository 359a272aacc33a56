"""Commands that begin with their imports done: each is forked from one process that imports for all of them.

PyTorch, Lightning and transformers take seconds of CPU to import, in every step of a run anew.
"""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import runpy
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import chdir, contextmanager
from multiprocessing import forkserver, reduction
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from commands.run_folder.places import ROOT
from doppel.console import interrupt
from doppel.console.parent import VARIABLE, end_with, end_with_named
from doppel.errors import UserError

#: What most steps import, after this module. Not Weights & Biases: its import makes a temporary folder, which the first
#: command to end would remove under all later ones.
MODULES = (
    *("commands.lightning.rehearsal", "commands.lightning.next_steps", "commands.quality.evaluate"),
    *("lightning_modules.causal_lm", "datamodules.dialogue_data_module", "datamodules.prompt_data_module"),
    *("callbacks.synthetic_writer", "callbacks.wandb_lineage", "callbacks.preemption"),
    *("transformers.models.gpt2.modeling_gpt2", "sklearn.cluster"),
)
if VARIABLE in os.environ:  # this is the process that forks: it ends with the run, and at Ctrl-C while it imports
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # of the whole group, as `timeout` sends it: a training saves first
    end_with_named()


def can_fork(python: Sequence[str]) -> bool:
    """Return whether steps that an interpreter is to run may be forked by this process.

    Another interpreter cannot be forked from this one's like. What forks ends with the thread that started it, and
    would take the steps of other threads along.
    """
    is_first = threading.current_thread() is threading.main_thread()
    return list(python) == [sys.executable] and "SLURM_JOB_ID" not in os.environ and is_first


@contextmanager
def _imported(root: Path) -> Iterator[None]:
    """Have a process that has imported what the modules below a folder are, and from which others are forked here.

    Raises:
        UserError: It has ended before.
    """
    multiprocessing.set_forkserver_preload([__name__, *MODULES])
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")  # a script that calls `run` is not imported, and run, anew
    os.environ[VARIABLE] = str(os.getpid())
    try:
        with chdir(root):
            forkserver.ensure_running()
        yield
    except (EOFError, ConnectionError, BrokenProcessPool):
        raise UserError("what imports for all steps has ended, see above; the same command goes on") from None
    finally:
        sys.modules["__main__"] = main
        del os.environ[VARIABLE]


def answer(function: Callable[..., Any], *arguments: object) -> Any:
    """Call a function in a process that has the imports of all steps; what it returns, or raises."""
    context = multiprocessing.get_context("forkserver")
    with _imported(ROOT), ProcessPoolExecutor(1, context) as pool:
        return pool.submit(_answer, dict(os.environ), function, arguments).result()


def _answer(variables: dict[str, str], function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.update(variables)
    return function(*arguments)


class Forked(ForkServerProcess):
    """A command as a process of its own, as if it had been started anew: only modules are shared.

    Python's fork server imports for all commands of this process, and computes nothing: so there is no thread and no
    handle of a GPU that a fork would copy. Whoever is killed takes what it has forked along
    (:func:`~doppel.console.parent.end_with`), so that nobody goes on with a run that another one has begun anew.

    Formal guarantees:
        Noise, samples of units and seeds of trainings come from the operating system's entropy, which is read after the
        fork, so two commands never share them. NumPy's generator, which each process would seed when it is imported,
        is seeded again in each command.

    Args:
        words: Path of ``cli.py``, and what follows.
        cwd: Where it runs; None: here.
        outputs: Descriptors of its output and its errors.
    """

    def __init__(self, words: Sequence[str], cwd: Path | None, outputs: tuple[int, int] = (1, 2)) -> None:
        super().__init__()
        self._words, self._cwd, self._outputs = list(words), cwd or Path.cwd(), outputs
        self._environment = {**os.environ, "DOPPEL_RUN": "1"}

    def __getstate__(self) -> dict[str, Any]:
        """The descriptors are sent along."""
        return {**vars(self), "_outputs": [reduction.DupFd(output) for output in self._outputs]}

    def start(self) -> None:
        """Have the command forked, once the imports are done."""
        with _imported(Path(self._words[0]).parent):
            super().start()

    def run(self) -> None:
        """Run the command in its process: from the first line of ``cli.py`` to what is done at the end."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        import numpy as np

        end_with(os.getppid())
        gc.freeze()  # what was imported is no garbage, and is not copied to look for some
        multiprocessing.set_start_method(None, force=True)  # that of its own workers
        np.random.seed()
        os.environ.clear()
        os.environ.update(self._environment)
        os.chdir(self._cwd)
        sys.path.insert(0, os.path.dirname(self._words[0]))
        sys.argv = self._words
        for place, sent in enumerate(self._outputs, 1):
            os.dup2(cast(Any, sent).detach(), place)
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            sys.exit(interrupt.one_line(self._call))
        except Exception:  # noqa: BLE001 as an interpreter ends, of which W&B hears that it failed
            sys.excepthook(*sys.exc_info())
            sys.exit(1)
        finally:
            atexit._run_exitfuncs()

    def _call(self) -> int:
        runpy.run_path(self._words[0], run_name="__main__")
        return 0

    def wait(self) -> int:
        """Wait for the end, and return the exit status as ``subprocess.Popen`` does."""
        self.join()
        assert self.exitcode is not None
        return self.exitcode
