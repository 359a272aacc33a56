"""Commands that are forked from one process that has imported already behave as if they had been started."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from multiprocessing import forkserver
from pathlib import Path

import pytest

from commands.run.execution import forks
from commands.run.execution.execute import run_step
from commands.run_folder.places import ROOT
from doppel.console.heard import heard, written_down
from doppel.errors import UserError

_CLI = """
import atexit, json, multiprocessing, os, sys, time
import numpy as np

def main():
    atexit.register(lambda: open(sys.argv[1] + ".end", "w").close())
    print("said", flush=True)
    seen = {"pid": os.getpid(), "parent": os.getppid(), "argv": sys.argv, "cwd": os.getcwd(), "path": sys.path[0],
            "numpy": np.random.rand(), "name": __name__, "imported": "colorsys" in sys.modules,
            "environment": {**os.environ}, "workers": multiprocessing.get_start_method()}
    with open(sys.argv[1] + ".partial", "w") as file:
        json.dump(seen, file)
    os.rename(sys.argv[1] + ".partial", sys.argv[1])
    try:
        time.sleep(float(sys.argv[2]))
    except KeyboardInterrupt:
        sys.exit(130)
    return int(sys.argv[3])

if __name__ == "__main__":
    sys.exit(main())
"""


#: A run of one command.
_RUN = """
import sys
from pathlib import Path
from commands.run.execution import forks
from commands.run.execution.execute import run_step
from doppel.console import interrupt
forks.MODULES = {modules}
root = Path("{root}")
stage = "tool", root / ".done" / "step", [sys.executable, *{words}], root, {is_forked}
sys.exit(interrupt.one_line(lambda: run_step(*stage)))
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "cli.py").write_text(_CLI)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(tmp_path)]))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(forks, "MODULES", ("colorsys", "no_such_module"))
    forkserver._forkserver._stop()  # type: ignore[attr-defined]  # one of an earlier test has other modules and outputs
    yield tmp_path
    forkserver._forkserver._stop()  # type: ignore[attr-defined]


def _words(root: Path, name: str, seconds: float = 0, status: int = 0) -> list[str]:
    return [str(root / "cli.py"), str(root / name), str(seconds), str(status)]


def _run(root: Path, modules: Sequence[str] = ("colorsys",), is_forked: bool = True) -> subprocess.Popen[str]:
    """A run in a session of its own, which Ctrl-C reaches, with a command of 60 s."""
    words = _words(root, "a", seconds=60)
    code = _RUN.format(modules=modules, root=root, words=words, is_forked=is_forked)
    heard = "import signal, sys, os; signal.signal(signal.SIGINT, signal.default_int_handler); exec(sys.argv[1])"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", heard, code], start_new_session=True, **pipes)  # type: ignore[call-overload, no-any-return]


def test_each_command_is_a_process_of_its_own_with_the_imports_done(
    root: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forked(name: str, is_quiet: bool, status: int = 0) -> int:
        with heard(is_quiet) as outputs:
            command = forks.Forked(_words(root, name, status=status), root, outputs)
            command.start()
            return command.wait()

    here = os.getcwd()
    assert forked("a", is_quiet=False) == 0
    assert capfd.readouterr().out == "said\n"
    monkeypatch.setenv("OF_THE_SECOND", "yes")
    assert forked("b", is_quiet=True, status=3) == 3
    assert capfd.readouterr().out == ""
    first, second = (json.loads((root / name).read_text()) for name in "ab")
    assert first["argv"] == _words(root, "a") and first["name"] == "__main__"
    assert first["imported"] and first["cwd"] == str(root) and first["path"] == str(root)
    assert first["workers"] == multiprocessing.get_start_method() and os.getcwd() == here
    assert {**os.environ, "DOPPEL_RUN": "1"} == second["environment"] and "OF_THE_SECOND" not in first["environment"]
    assert len({first["pid"], second["pid"], os.getpid()}) == 3
    assert _parent(os.getpid()) != first["parent"] == second["parent"] != os.getpid()
    assert first["numpy"] != second["numpy"], "two commands share a generator"
    assert (root / "a.end").exists() and (root / "b.end").exists(), "what a process does at its end was left out"


def test_an_error_that_nobody_expected_is_told_and_done_with_as_an_interpreter_does(
    root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    hook = "import sys\nsys.excepthook = lambda kind, *_: print('hooked', kind.__name__)\nraise RuntimeError\n"
    (root / "cli.py").write_text(hook)
    command = forks.Forked(_words(root, "a"), root)
    command.start()
    assert command.wait() == 1 and capfd.readouterr().out == "hooked RuntimeError\n"


def test_the_status_is_that_of_the_stage_and_marks_what_is_done(root: Path) -> None:
    mark = root / ".done" / "step"
    command = ["python", *_words(root, "a", status=75)]
    assert run_step("tool", mark, command, root, is_forked=True) == 75 and not mark.exists()
    command[-1] = "0"
    assert run_step("tool", None, command, root, is_forked=True) == 0


def test_what_a_command_says_is_heard_whatever_the_descriptors_of_the_process_that_forks(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a notebook; of a second run the descriptors of the first one are gone."""
    for name in "ab":
        with written_down(root / "run.log"), heard() as outputs:
            command = ["python", *_words(root, name)]
            assert run_step("tool", None, command, root, is_forked=True, outputs=outputs) == 0
        assert capsys.readouterr().out == "said\n"
    assert (root / "run.log").read_text().splitlines()[1::2] == ["said"] * 2


def test_whoever_ends_the_stage_ends_the_command(root: Path) -> None:
    def end() -> None:
        _wait_for(root / "a")
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end).start()
    command = ["python", *_words(root, "a", seconds=60)]
    assert run_step("tool", None, command, root, is_forked=True) == 143
    assert not (root / "a.end").exists()


@pytest.mark.parametrize("is_importing", [True, False], ids=["while importing", "in a command"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_what_ends_a_run_ends_its_command_and_the_process_that_forks(
    root: Path, is_importing: bool, number: signal.Signals
) -> None:
    (root / "slow.py").write_text("import time\nopen('importing', 'w').close()\ntime.sleep(60)\n")
    started = time.monotonic()
    process = _run(root, ["slow"] if is_importing else ["colorsys"])
    _wait_for(root / ("importing" if is_importing else "a"))
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)
    _, error = process.communicate()  # until nobody holds the pipes
    expected = [130] if number == signal.SIGINT else [143, -15]
    assert process.returncode in expected and error == "", "a traceback"
    assert time.monotonic() - started < 50, "it was waited for"
    assert (root / "a.end").exists() is (number == signal.SIGINT and not is_importing), "Ctrl-C lets a command save"


def test_sigterm_of_the_whole_group_lets_a_command_save(root: Path) -> None:
    """As `timeout` and service managers send it; what forks has to outlive the command that it forked."""
    saving = "import signal, sys, time\nsaved = lambda *_: (time.sleep(1), open('saved', 'w').close(), sys.exit(75))\n"
    saving += "signal.signal(signal.SIGTERM, saved)\nopen(sys.argv[1], 'w').close()\ntime.sleep(60)\n"
    (root / "cli.py").write_text(saving)
    process = _run(root)
    _wait_for(root / "a")
    os.killpg(process.pid, signal.SIGTERM)
    _, error = process.communicate()
    _wait_for(root / "saved")
    assert error == "" and process.returncode in (75, 143, -15)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux alone ends a child with its parent")
@pytest.mark.parametrize("whom", ["run", "server", "run that started"])
def test_kill_9_ends_the_command_too(root: Path, whom: str) -> None:
    is_forked = whom != "run that started"
    if not is_forked:  # a command of its own, as `cli.py` begins
        begin = "from doppel.console.parent import end_with_named\nend_with_named()\n"
        (root / "cli.py").write_text(begin + (root / "cli.py").read_text())
    process = _run(root, is_forked=is_forked)
    _wait_for(root / "a")
    seen = json.loads((root / "a").read_text())
    family = [seen["pid"], *([seen["parent"]] if is_forked else [])]  # and who has forked it
    assert process.pid not in family and all(_runs(pid) for pid in family)
    os.kill(seen["parent"] if whom == "server" else process.pid, signal.SIGKILL)
    assert process.wait() in ([-9] if whom != "server" else [255])
    ends = time.monotonic() + 10
    while any(_runs(pid) for pid in family) and time.monotonic() < ends:
        time.sleep(0.02)
    assert not any(_runs(pid) for pid in family)
    assert not (root / "a.end").exists() and not (root / ".done").exists()


def _stat(pid: int) -> list[str]:
    """State and parent of a process; nothing of one that there is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except FileNotFoundError:
        return []


def _runs(pid: int) -> bool:
    return _stat(pid)[:1] not in ([], ["Z"])


def _parent(pid: int) -> int:
    return int(_stat(pid)[1])


def test_imports_that_fail_are_told_and_nothing_runs(
    root: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "broken.py").write_text("raise RuntimeError('broken')\n")
    monkeypatch.setattr(forks, "MODULES", ("broken",))
    with pytest.raises(UserError, match="has ended, see above"):
        forks.Forked(_words(root, "a"), root).start()
    assert "RuntimeError: broken" in capfd.readouterr().err and not (root / "a").exists()


@pytest.mark.slow
def test_what_is_imported_starts_no_thread_asks_no_gpu_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread and a handle of a GPU do not outlive a fork, and each command removes temporary files at its end."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    code = (
        "import os, importlib, threading\n"
        f"for name in {list(forks.MODULES)}: importlib.import_module(name)\n"
        "import torch\n"
        f"left = [name for name in os.listdir({str(tmp_path)!r}) if not name.startswith('torchinductor_')]\n"  # a cache
        "print(threading.active_count(), torch.cuda.is_initialized(), left)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "1 False []"


def _wait_for(path: Path) -> None:
    for _ in range(600):
        if path.exists():
            return
        time.sleep(0.05)
    raise TimeoutError(path)
