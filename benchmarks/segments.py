"""Activation checkpointing against smaller micro-batches: the same step within the same memory, which is faster?

    python -m benchmarks.segments --sizes cpu-256 cpu-256-deep --lengths 64 128 --micro-batch 16

Clipping keeps the saving of activation checkpointing by running each block three times (`Segment`). Fewer rows at a
time save memory too, and each is run once: gradients are summed over micro-batches anyway. For each setting the
micro-batch without checkpointing is halved until a step takes no more memory than with it; then the two take turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

from benchmarks._harness import freed_memory
from benchmarks._memory_meter import peak_bytes
from benchmarks._subject import SIZES, Setting, Subject
from benchmarks._training import doppel_fused, doppel_recomputed

SIZES["cpu-256-deep"] = {**SIZES["cpu-256"], "n_layer": 12, "n_positions": 512}


def peak(setting: Setting) -> int:
    """Peak bytes of a step after two others."""
    with freed_memory(setting.device):
        step = way(setting)
        step()
        step()
        return peak_bytes(step, setting.device)


def way(setting: Setting) -> Callable[[], None]:
    """A step as it is trained: with checkpointing the head's gradient is formed twice instead of held."""
    subject = Subject(setting)
    return (doppel_recomputed if setting.checkpointing else doppel_fused)(subject)


def within(setting: Setting, limit: int) -> tuple[Setting, int]:
    """The largest micro-batch, halved again and again, whose step stays within the limit; else that of one row."""
    while True:
        found = peak(setting)
        if found <= limit or setting.rows == 1:
            return setting, found
        setting = replace(setting, rows=setting.rows // 2, num_micro_batches=setting.num_micro_batches * 2)


def seconds(settings: tuple[Setting, Setting], repeats: int) -> tuple[float, float]:
    """Median seconds of a step of each, in turns."""
    steps = [way(setting) for setting in settings]
    times: list[list[float]] = [[], []]
    for repeat in range(repeats + 1):
        for step, found in zip(steps, times, strict=True):
            start = time.perf_counter()
            step()
            if repeat:
                found.append(time.perf_counter() - start)
    return statistics.median(times[0]), statistics.median(times[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["cpu-256"], choices=sorted(SIZES))
    parser.add_argument("--lengths", nargs="+", type=int, default=[64, 128])
    parser.add_argument("--micro-batch", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    for size in arguments.sizes:
        for length in arguments.lengths:
            kept = Setting(size, arguments.micro_batch, length, num_micro_batches=2, checkpointing=True)
            limit = peak(kept)
            whole = replace(kept, checkpointing=False)
            small, needed = within(whole, limit)
            own, other = seconds((small, kept), arguments.repeats)
            print(f"{kept}: {limit / 1e6:.0f} MB, {other:.2f} s")
            print(f"{small}: {needed / 1e6:.0f} MB, {own:.2f} s ({'fits' if needed <= limit else 'does not fit'})")
            print(f"speed of the smaller micro-batch: {other / own:.2f} x, memory {needed / limit:.2f} x\n", flush=True)


if __name__ == "__main__":
    main()
