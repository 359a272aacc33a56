"""Commands that are forked from one process that has imported already behave as if they had been started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from commands.pipeline.forks import MODULES, Forks
from commands.pipeline.run_stage import run_stage
from commands.runs.yaml_files import ROOT

_CLI = """
import atexit, json, os, sys, time
import numpy as np

def main():
    atexit.register(lambda: open(sys.argv[1] + ".end", "w").close())
    print("said", flush=True)
    seen = {"pid": os.getpid(), "argv": sys.argv, "cwd": os.getcwd(), "numpy": np.random.rand(), "name": __name__,
            "imported": "colorsys" in sys.modules, "run": os.environ.get("DOPPEL_RUN")}
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


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cli.py").write_text(_CLI)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


@pytest.fixture
def forks(root: Path) -> Iterator[Forks]:
    with Forks(sys.executable, root, root, modules=["colorsys", "numpy", "no_such_module"]) as forks:
        yield forks


def _words(root: Path, name: str, seconds: float = 0, status: int = 0) -> list[str]:
    return [str(root / name), str(seconds), str(status)]


def test_each_command_is_a_process_of_its_own_with_the_imports_done(
    forks: Forks, root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert forks.start(_words(root, "a")).wait() == 0
    assert capfd.readouterr().out == "said\n"
    assert forks.start(_words(root, "b", status=3), subprocess.DEVNULL).wait() == 3
    assert capfd.readouterr().out == ""
    first, second = (json.loads((root / name).read_text()) for name in "ab")
    assert first["argv"] == [str(root / "cli.py"), *_words(root, "a")] and first["name"] == "__main__"
    assert first["imported"] and first["run"] == "1" and first["cwd"] == str(root)
    assert len({first["pid"], second["pid"], os.getpid()}) == 3
    assert first["numpy"] != second["numpy"], "two commands share a generator"
    assert (root / "a.end").exists() and (root / "b.end").exists(), "what a process does at its end was left out"


def test_the_status_is_that_of_the_stage_and_marks_what_is_done(forks: Forks, root: Path) -> None:
    mark = root / ".done" / "step"
    command = ["python", "cli.py", *_words(root, "a", status=75)]
    assert run_stage("tool", mark, command, root, None, forks) == 75 and not mark.exists()
    command[-1] = "0"
    assert run_stage("tool", None, command, root, None, forks) == 0


def test_whoever_ends_the_stage_ends_the_command(forks: Forks, root: Path) -> None:
    def end() -> None:
        _wait_for(root / "a")
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end).start()
    assert run_stage("tool", None, ["python", "cli.py", *_words(root, "a", seconds=60)], root, None, forks) == 143
    assert not (root / "a.end").exists()


@pytest.mark.parametrize("is_importing", [True, False], ids=["while importing", "in a command"])
def test_ctrl_c_ends_the_command_and_the_process_that_forks(root: Path, is_importing: bool) -> None:
    (root / "slow.py").write_text("import time\nopen('importing', 'w').close()\ntime.sleep(60)\n")
    code = (
        "import sys; from pathlib import Path; from commands.pipeline.forks import Forks\n"
        "from commands.pipeline.run_stage import run_stage\n"
        f"root, modules = Path({str(root)!r}), {['slow'] if is_importing else ['colorsys']}\n"
        "with Forks(sys.executable, root, root, modules) as forks:\n"
        f"    words = ['python', 'cli.py', *{_words(root, 'a', seconds=60)}]\n"
        "    sys.exit(run_stage('tool', None, words, root, None, forks))\n"
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    heard = "import signal, sys, os; signal.signal(signal.SIGINT, signal.default_int_handler); exec(sys.argv[1])"
    started = time.monotonic()
    process = subprocess.Popen([sys.executable, "-c", heard, code], start_new_session=True, **pipes)  # type: ignore[call-overload]
    _wait_for(root / ("importing" if is_importing else "a"))
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate()
    assert process.returncode == 130
    assert error in ("", "interrupted\n")  # the server may be ended before it says so; never a traceback
    assert time.monotonic() - started < 50, "it was waited for"


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux alone ends a child with its parent")
@pytest.mark.parametrize("is_forked", [True, False], ids=["forked", "started"])
def test_kill_9_of_the_run_ends_its_command_too(root: Path, is_forked: bool) -> None:
    if not is_forked:  # a command of its own, as `cli.py` begins
        begin = "from doppel.console.parent import end_with_named\nend_with_named()\n"
        (root / "cli.py").write_text(begin + (root / "cli.py").read_text())
    code = (
        "import sys; from pathlib import Path; from commands.pipeline.forks import Forks\n"
        "from commands.pipeline.run_stage import run_stage\n"
        f"root = Path({str(root)!r})\n"
        "with Forks(sys.executable, root, root, ['colorsys']) as forks:\n"
        f"    words = [sys.executable, 'cli.py', *{_words(root, 'a', seconds=60)}]\n"
        f"    run_stage('tool', root / '.done' / 'step', words, root, None, forks if {is_forked} else None)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    _wait_for(root / "a")
    command = json.loads((root / "a").read_text())["pid"]
    family = [command, *([_parent(command)] if is_forked else [])]  # and who has forked it
    assert process.pid not in family and all(_runs(pid) for pid in family)
    process.kill()
    process.wait()
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


def test_a_process_that_ends_before_it_forks_is_a_step_that_fails(
    root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (root / "broken.py").write_text("raise RuntimeError('broken')\n")
    with Forks(sys.executable, root, root, modules=["broken"]) as forks:
        assert forks.start(_words(root, "a")).wait() == 1
    assert "RuntimeError: broken" in capfd.readouterr().err and not (root / "a").exists()


def test_what_is_imported_starts_no_thread_asks_no_gpu_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread and a handle of a GPU do not outlive a fork, and each command removes temporary files at its end."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    code = (
        "import os, importlib, threading\n"
        f"for name in {list(MODULES)}: importlib.import_module(name)\n"
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
