"""The peak of tensor memory during one step."""

from __future__ import annotations

import gc
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile


def live_bytes() -> int:
    """Bytes of all CPU tensors that Python can reach, every storage once."""
    gc.collect()
    storages = {}
    for thing in gc.get_objects():
        if type(thing) in (Tensor, torch.nn.Parameter) and thing.device.type == "cpu":
            storage = thing.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def peak_bytes(step: Callable[[], None], device: str) -> int:
    """Most bytes of tensors that are alive at once during ``step``.

    On CUDA the allocator counts them. On CPU the profiler reports every allocation and release of the allocator, also
    of buffers inside an operation; their running sum is added to what is alive before.

    Args:
        step: A full training step; it should have run before, so that the optimizer's state exists.
        device: ``cpu`` or ``cuda``.
    """
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()
    before = live_bytes()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    results = profiled.profiler.kineto_results  # type: ignore[union-attr]
    changes = sorted((e.start_ns(), e.nbytes()) for e in results.events() if e.name() == "[memory]")
    running = highest = 0
    for _, change in changes:
        running += change
        highest = max(highest, running)
    return before + highest


def resident_peak(arguments: Sequence[str]) -> tuple[int, int]:
    """Highest resident memory of a fresh process that runs ``benchmarks.memory``'s probe: before and after.

    Args:
        arguments: Of ``python -m benchmarks.memory --probe``.

    Returns:
        Bytes at their highest before the model was built, and at the end.
    """
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}  # what is freed goes back to the system at once
    command = [sys.executable, "-m", "benchmarks.memory", *arguments]
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    before, after = output.split()[-2:]
    return int(before), int(after)


def max_resident_bytes() -> int:
    """The highest resident memory of this process so far.

    Linux's ``ru_maxrss`` is inherited from the process that started this one, so its own record is read where it is.
    """
    status = Path("/proc/self/status")
    found = re.search(r"^VmHWM:\s*(\d+) kB", status.read_text(), re.M) if status.is_file() else None
    if found is not None:
        return int(found[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
