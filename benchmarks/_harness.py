"""What all benchmarks share: the machine and the versions in the header, interleaved timing, Markdown tables."""

from __future__ import annotations

import datetime
import gc
import os
import platform
import re
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

RESULTS = Path(__file__).parent / "results"

#: glibc gives large buffers back to the system after every step and faults them in again in the next, which costs up to
#: a third of a step and swings with the order of the calls. These keep the memory; they are read when a process starts.
ALLOCATOR = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000", "MALLOC_TOP_PAD_": "268435456"}

#: What Opacus raises where it does not work with the model, the device or the release at hand.
NOT_RUN = (NotImplementedError, RuntimeError, TypeError, ValueError, AttributeError, KeyError, AssertionError)


class UnavailableError(NotImplementedError):
    """Something that this installation or this device does not have; the message says what."""


def keep_allocated_memory() -> None:
    """Start this process again with the allocator's settings, if it has none (Linux; they matter on CPU only)."""
    if sys.platform == "linux" and "MALLOC_MMAP_MAX_" not in os.environ:
        sys.stdout.flush()
        os.execve(sys.executable, sys.orig_argv, {**ALLOCATOR, **os.environ})


# ------------------------------------------------------------------------------------------------ header
def machine(device: str) -> str:
    """The kind of machine, such as ``NVIDIA H100 80GB HBM3`` or ``AMD EPYC, 2 cores``."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    try:
        names = re.findall(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        names = []
    name = names[0].strip() if names else platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores"


def versions() -> str:
    """Versions of what the numbers depend on."""
    found = [f"Python {platform.python_version()}"]
    for package in ("torch", "transformers", "opacus", "doppel"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"{package} (not installed)")
    if torch.cuda.is_available():
        found.append(f"CUDA {torch.version.cuda}")
    return ", ".join(found)


def result_file(name: str, device: str) -> Path:
    """``benchmarks/results/<name>-cpu.md``, or with the kind of GPU."""
    kind = "cpu" if device == "cpu" else re.sub(r"[^a-z0-9]+", "-", machine(device).lower()).strip("-")
    return RESULTS / f"{name}-{kind}.md"


class Report:
    """Text that is printed and written as it comes, so that a run that is cut short leaves its tables.

    Args:
        title: Heading of the run.
        device: ``cpu`` or ``cuda``; names the machine in the header.
        path: File to write; None prints only.
        append: Keep what the file holds already.
        notes: Further header lines: what is the same for all tables.
    """

    def __init__(self, title: str, device: str, path: Path | None, append: bool, notes: Sequence[str] = ()) -> None:
        self._path = path
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not append:
                path.write_text("")
        threads = f", {torch.get_num_threads()} thread(s) used" if device == "cpu" else ""
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
        self.add(f"# {title}\n")
        self.add(f"- machine: {machine(device)}{threads}\n- versions: {versions()}\n- date: {now}")
        self.add(f"- command: `{command()}`")
        for note in notes:
            self.add(f"- {note}")
        self.add("")

    def add(self, text: str) -> None:
        """One more block of lines."""
        print(text, flush=True)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(text + "\n")


def command() -> str:
    """The command line of this process, as one would type it in the repository's root."""
    arguments = sys.orig_argv[1:] if len(sys.orig_argv) > 1 else sys.argv
    return shlex.join(["python", *arguments])


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others are numbers."""
    lines = [f"| {' | '.join(columns)} |", f"|---|{'---:|' * (len(columns) - 1)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines) + "\n"


# ------------------------------------------------------------------------------------------------ timing
@dataclass(frozen=True)
class Comparison:
    """Two ways of doing one thing, timed in turns.

    Attributes:
        seconds: Of each call of the one that is judged.
        baseline_seconds: Of each call of the baseline; one more than ``seconds``.
    """

    seconds: tuple[float, ...]
    baseline_seconds: tuple[float, ...]

    @property
    def ratios(self) -> list[float]:
        """Each time over the mean of the baseline's times before and after it, so that slow drifts cancel."""
        before, after = self.baseline_seconds[:-1], self.baseline_seconds[1:]
        return [2 * s / (a + b) for s, a, b in zip(self.seconds, before, after, strict=True)]

    @property
    def ratio(self) -> float:
        """Median of the ratios."""
        return statistics.median(self.ratios)

    @property
    def spread(self) -> tuple[float, float]:
        """First and third quartile of the ratios."""
        ratios = sorted(self.ratios)
        if len(ratios) < 2:
            return ratios[0], ratios[0]
        first, _, third = statistics.quantiles(ratios, n=4, method="inclusive")
        return first, third

    @property
    def median(self) -> float:
        """Median seconds of the one that is judged."""
        return statistics.median(self.seconds)

    @property
    def baseline_median(self) -> float:
        """Median seconds of the baseline."""
        return statistics.median(self.baseline_seconds)


def compare(
    judged: Callable[[], None],
    baseline: Callable[[], None],
    *,
    device: str,
    repeats: int,
    seconds: float = float("inf"),
    warmup: int = 2,
    min_seconds_per_turn: float = 0.0,
) -> Comparison:
    """Time A B A B … A in one process.

    Args:
        judged: B.
        baseline: A.
        device: ``cuda`` is waited for after every turn.
        repeats: Turns of B.
        seconds: Stop early after so long, but not before three turns.
        warmup: Calls of each before anything is timed (compilation, optimizer state, allocator).
        min_seconds_per_turn: Calls are repeated within a turn to last at least so long; for a GPU, where a turn ends
            with a synchronisation.
    """
    for _ in range(warmup):
        baseline()
        judged()
    calls = 1
    if min_seconds_per_turn:
        calls = max(1, round(min_seconds_per_turn / max(_time(baseline, 1, device), 1e-6)))
    start = time.perf_counter()
    before, during = [_time(baseline, calls, device)], []
    for turn in range(repeats):
        during.append(_time(judged, calls, device))
        before.append(_time(baseline, calls, device))
        if turn >= 2 and time.perf_counter() - start > seconds:
            break
    return Comparison(tuple(during), tuple(before))


def _time(step: Callable[[], None], calls: int, device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        step()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / calls


@contextmanager
def freed_memory(device: str) -> Iterator[None]:
    """Free what the block leaves behind, also when it fails."""
    try:
        yield
    finally:
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that the device's memory was exhausted."""
    return isinstance(error, torch.OutOfMemoryError) or "not enough memory" in str(error)


def is_expected(way: str, error: BaseException) -> bool:
    """Whether a way of training may end so: Opacus and Opake as they like, others only for lack of memory or device."""
    return way.startswith(("Opacus", "Opake")) or isinstance(error, UnavailableError) or is_out_of_memory(error)


def reason(error: BaseException) -> str:
    """The first line of an error, for a table."""
    if is_out_of_memory(error):
        return "out of memory"
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    return first if len(first) <= 160 else first[:157] + "…"
