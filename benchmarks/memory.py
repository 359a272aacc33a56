"""Peak memory of a full training step, private against ordinary.

    python -m benchmarks.memory --sizes cpu-256 --lengths 64 --micro-batch 16 --check-rss
    python -m benchmarks.memory --device cuda --precision fp16 --sizes gpt2 gpt2-large --lengths 128 --micro-batch 16

On CUDA: the allocator's ``max_memory_allocated`` of one step. On CPU: the highest running sum of the allocations and
releases that the profiler sees during one step, and what was alive before; ``--check-rss`` compares that with the
resident memory of a fresh process. The step before has made the optimizer's state. Two micro-batches a step by default,
so that gradients are held while the activations of the second are, as in training by logical batches.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import torch

from benchmarks._harness import ALLOCATOR, NOT_RUN, Report, freed_memory, is_expected, reason, result_file, table
from benchmarks._memory_meter import max_resident_bytes, peak_bytes, resident_peak
from benchmarks._subject import Setting, Subject
from benchmarks._training import WAYS, structures
from benchmarks.clipping import add_common_arguments, choose_rows

#: (way of training, baseline).
ROWS = (
    ("Hugging Face eager", "ordinary"),
    ("Doppel", "ordinary"),
    ("ordinary, HeadLoss", "ordinary"),
    ("Doppel, HeadLoss", "ordinary, HeadLoss"),
    ("Doppel, HeadLoss", "ordinary"),
    ("Opacus hooks", "ordinary"),
    ("Opacus functorch", "ordinary"),
    ("Opacus expanded weights", "ordinary"),
    ("Opacus fast gradient clipping", "ordinary"),
    ("Opacus ghost clipping", "ordinary"),
)
COLUMNS = (
    "training",
    "peak MB",
    "baseline",
    "its peak MB",
    "ratio",
    "ratio without model and optimizer",
)
NOTES = (
    "without model and optimizer: less 16 bytes a parameter (weights, gradients, Adam's state; 12 with one micro-batch "
    "a step), which nothing here can save",
)


@cache
def peak(setting: Setting, way: str, tied: bool, linear: bool) -> int:
    """Peak bytes of a step."""
    with freed_memory(setting.device):
        return _peak(setting, way, tied, linear)


def _peak(setting: Setting, way: str, tied: bool, linear: bool) -> int:
    subject = Subject(setting, tied, linear)
    step = WAYS[way](subject)
    step()
    step()
    subject.optimizer.zero_grad()
    return peak_bytes(step, setting.device)


@cache
def fixed_bytes(setting: Setting, tied: bool) -> int:
    """Bytes of weights, Adam's state and, if there are earlier micro-batches, gradients."""
    subject = Subject(replace(setting, device="cpu", rows=1), tied)
    return subject.num_parameters * (16 if setting.num_micro_batches > 1 else 12)


def run(setting: Setting, rows: Sequence[tuple[str, str]], report: Report) -> None:
    """Measure the rows of one table."""
    lines, remarks = [], []
    for way, baseline in rows:
        for tied, linear in structures(way):
            try:
                own, other = peak(setting, way, tied, linear), peak(setting, baseline, tied, linear)
            except NOT_RUN as error:
                if not is_expected(way, error):
                    raise
                remarks.append(f"- {way} does not run{'' if tied else ' untied either'}: {reason(error)}")
                continue
            structure = ("" if tied else ", untied") + (", Linear layers" if linear else "")
            fixed = fixed_bytes(setting, tied)
            beyond = f"{(own - fixed) / (other - fixed):.3f}"
            start = [way + structure, _mb(own), baseline + structure, _mb(other)]
            lines.append([*start, f"**{own / other:.3f}**", beyond])
            break
    report.add(f"\n## {setting}\n")
    report.add(table(COLUMNS, lines))
    if remarks:
        report.add("\n".join(dict.fromkeys(remarks)) + "\n")


def check_resident(setting: Setting, ways: Sequence[str], report: Report) -> None:
    """Compare with the growth of a fresh process's resident memory."""
    lines = []
    for way in ways:
        options = [f"--device={setting.device}", f"--precision={setting.precision}", "--sizes", setting.size]
        options += ["--lengths", str(setting.length), "--micro-batch", str(setting.rows)]
        options += ["--micro-batches", str(setting.num_micro_batches), "--probe", way]
        before, after = resident_peak(options)
        measured = peak(setting, way, True, False)
        lines.append([way, _mb(measured), _mb(after - before), f"{(after - before) / measured:.2f}"])
    report.add(f"\n## Cross-check by resident memory: {setting}\n")
    report.add(table(("training", "peak MB", "growth of resident memory, MB", "ratio"), lines))


def probe(setting: Setting, way: str) -> None:
    """Print this process's highest resident memory once a tiny model has loaded all code, and after three steps."""
    for chosen in (replace(setting, size="tiny", rows=2, length=8), setting):
        before = max_resident_bytes()
        step = WAYS[way](Subject(chosen))
        for _ in range(3):
            step()
    print(before, max_resident_bytes())


def _mb(size: float) -> str:
    return f"{size / 1e6:,.1f}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every setting and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_arguments(parser)
    parser.set_defaults(micro_batches=2)
    parser.add_argument("--no-checkpointing", action="store_true", help="leave activation checkpointing out")
    parser.add_argument("--check-rss", action="store_true", help="also resident memory of fresh processes (CPU)")
    parser.add_argument("--probe", metavar="WAY", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    settings = [
        Setting(size, num_rows, length, options.micro_batches, options.device, options.precision)
        for size in options.sizes
        for length in options.lengths
        for num_rows in options.micro_batch
    ]
    if options.probe:
        probe(settings[0], options.probe)
        return
    path = options.out or result_file("memory", options.device)
    report = Report("Peak memory of a training step", options.device, path, options.append, NOTES)
    rows = choose_rows(options, ROWS)
    for setting in settings:
        run(setting, rows, report)
        if not options.no_checkpointing:
            run(replace(setting, checkpointing=True), [r for r in rows if not r[0].startswith("Opacus")], report)
        if options.check_rss and options.device == "cpu":
            ways = [way for way, _ in rows if not way.startswith(("Opacus", "Hugging"))]
            check_resident(setting, list(dict.fromkeys(["ordinary", *ways])), report)
        peak.cache_clear()


if __name__ == "__main__":
    for name in ALLOCATOR:  # resident memory shows what is used only if what is freed goes back
        os.environ.pop(name, None)
    main()
