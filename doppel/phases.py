"""Names for the parts of a training step, for profilers and for :class:`callbacks.step_timer.StepTimer`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from torch.profiler import record_function

Phase = Literal["data", "forward", "backward", "clip", "reduce", "noise", "optimizer"]

#: In the order of a step.
PHASES: tuple[Phase, ...] = get_args(Phase)


class PhaseClock:
    """Seconds of each phase since the last :meth:`take`, on the device's own clock.

    On a GPU a pair of events is recorded around each phase and read in :meth:`take`, which waits for the device once;
    so the phases themselves run as they do without a clock. Phases are not nested.

    Args:
        device: Where the phases run.
    """

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._events: list[tuple[Phase, torch.cuda.Event, torch.cuda.Event]] = []

    def add(self, phase: Phase, seconds: float) -> None:
        """Count seconds that were measured elsewhere."""
        self._seconds[phase] += seconds

    @contextmanager
    def measure(self, phase: Phase) -> Iterator[None]:
        """Count what runs within the block."""
        if self._is_cuda:
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            yield
            end.record()
            self._events.append((phase, start, end))
        else:
            begin = time.perf_counter()
            yield
            self._seconds[phase] += time.perf_counter() - begin

    def take(self) -> dict[Phase, float]:
        """Seconds of every phase; counting starts anew."""
        if self._events:
            torch.cuda.synchronize()
        for phase, start, end in self._events:
            self._seconds[phase] += start.elapsed_time(end) / 1e3
        seconds, self._seconds, self._events = self._seconds, dict.fromkeys(PHASES, 0.0), []
        return seconds


_clock: PhaseClock | None = None


def set_clock(clock: PhaseClock | None) -> None:
    """Let a clock measure the phases of this process, or none."""
    global _clock
    _clock = clock


@contextmanager
def phase(name: Phase) -> Iterator[None]:
    """Mark a part of the step as ``doppel/NAME`` for a profiler, and time it if there is a clock."""
    with record_function(f"doppel/{name}"):
        if _clock is None:
            yield
        else:
            with _clock.measure(name):
                yield
