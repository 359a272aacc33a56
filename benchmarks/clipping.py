"""Time of a full training step, private against ordinary, interleaved in one process.

    python -m benchmarks.clipping --sizes cpu-256 cpu-768 --lengths 64 --micro-batch 16
    python -m benchmarks.clipping --device cuda --precision bf16 --sizes gpt2 --micro-batch 32 64 128 256

A step is forward, backward, clipping and AdamW (``--micro-batches`` of them before AdamW). Every way of training takes
turns with its baseline (A B A B … A); its ratio is the median over turns of its time by the mean of the baseline's
times before and after. All rows have the same length and all positions are labelled. Noise is a row of its own, since
ordinary training has none and it is added once a step, however many micro-batches there are. The last table counts
dispatched operations, which no load of a machine changes (``--operations`` gives it alone).
"""

from __future__ import annotations

import argparse
import itertools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks._harness import (
    NOT_RUN,
    Comparison,
    Report,
    UnavailableError,
    compare,
    freed_memory,
    is_expected,
    keep_allocated_memory,
    reason,
    result_file,
    table,
)
from benchmarks._memory_meter import peak_bytes
from benchmarks._operations import operations_table
from benchmarks._subject import PRECISIONS, SIZES, Setting, Step, Subject
from benchmarks._training import WAYS, owns_model, structures

#: (way of training, baseline). The baseline has the same loss kernel, or is what users compare with.
ROWS = (
    ("Hugging Face eager", "ordinary"),
    ("ordinary, HeadLoss", "ordinary"),
    ("Doppel", "ordinary"),
    ("Doppel, with noise", "ordinary"),
    ("Doppel, HeadLoss", "ordinary, HeadLoss"),
    ("Doppel, HeadLoss", "ordinary"),
    ("Opacus hooks", "ordinary"),
    ("Opacus functorch", "ordinary"),
    ("Opacus expanded weights", "ordinary"),
    ("Opacus fast gradient clipping", "ordinary"),
    ("Opacus ghost clipping", "ordinary"),
    ("Opake", "ordinary"),
    ("Opake, in four chunks", "ordinary"),
)

NOTES = (
    "ratio: time by the baseline's, median over the turns [quartiles]; throughput is 1 / ratio",
    "every way of training uses the same AdamW; noise only where it is named",
    "Opacus has no rule for Hugging Face's Conv1D: its rows, and their baselines, use equal nn.Linear layers",
    "Opake forms the gradients of all rows at once, which is its default, or of a quarter of them",
    "what refuses tied weights runs untied, against an untied baseline, and is listed below the table",
)


@dataclass(frozen=True)
class Result:
    """One row of the table; ``peaks`` are the bytes of a step and of the baseline's, on a GPU."""

    setting: Setting
    way: str
    baseline: str
    tied: bool
    linear: bool
    comparison: Comparison
    peaks: tuple[int, int] | None = None
    refusals: tuple[str, ...] = ()

    @property
    def throughput(self) -> float:
        """Of the way of training, as a share of its baseline's."""
        return 1.0 / self.comparison.ratio

    def cells(self) -> list[str]:
        """The row's text."""
        structure = [] if self.tied else ["untied"]
        structure += ["Linear layers"] if self.linear else []
        baseline = ", ".join([self.baseline, *structure])
        low, high = self.comparison.spread
        return [
            ", ".join([self.way, *structure]),
            f"{1e3 * self.comparison.median:.1f}",
            f"{self.setting.num_tokens / self.comparison.median:,.0f}",
            baseline,
            f"{1e3 * self.comparison.baseline_median:.1f}",
            f"**{self.comparison.ratio:.3f}** [{low:.3f}, {high:.3f}]",
            f"{self.throughput:.2f}",
            str(len(self.comparison.seconds)),
            *([] if self.peaks is None else [f"{peak / 1e9:.2f}" for peak in self.peaks]),
        ]


COLUMNS = ("training", "ms a step", "tokens / s", "baseline", "its ms", "time ratio", "throughput", "turns")
ON_GPU = ("peak GB", "its peak GB")


def measure(setting: Setting, way: str, baseline: str, options: argparse.Namespace) -> Result:
    """Time one way of training against its baseline, on the first structure of the model that it works with.

    Raises:
        UnavailableError: It works with none.
    """
    refusals: list[str] = []
    for tied, linear in structures(way):
        try:
            with freed_memory(setting.device):
                comparison, peaks = _compare(setting, way, baseline, tied, linear, options)
            return Result(setting, way, baseline, tied, linear, comparison, peaks, tuple(refusals))
        except NOT_RUN as error:
            if not is_expected(way, error):
                raise
            prefix = ("tied: " if tied else "untied: ") if len(structures(way)) > 1 else ""
            refusals.append(prefix + reason(error))
    raise UnavailableError("; ".join(refusals))


def _compare(
    setting: Setting, way: str, baseline: str, tied: bool, linear: bool, options: argparse.Namespace
) -> tuple[Comparison, tuple[int, int] | None]:
    subject = Subject(setting, tied, linear)
    judged = WAYS[way](Subject(setting, tied, linear) if owns_model(way) else subject)
    steps = judged, WAYS[baseline](subject)
    comparison = compare(
        *steps,
        device=setting.device,
        repeats=options.repeats,
        seconds=options.seconds,
        warmup=options.warmup,
        min_seconds_per_turn=0.2 if setting.device == "cuda" else 0.0,
    )
    if setting.device != "cuda" or owns_model(way):  # what holds two models says nothing of one
        return comparison, None
    judged_peak, its_peak = (_peak(subject, step) for step in steps)
    return comparison, (judged_peak, its_peak)


def _peak(subject: Subject, step: Step) -> int:
    subject.optimizer.zero_grad()
    return peak_bytes(step, subject.setting.device)


def run(setting: Setting, rows: Sequence[tuple[str, str]], options: argparse.Namespace, report: Report) -> list[Result]:
    """Measure the rows of one table."""
    results, remarks = [], []
    for way, baseline in rows:
        try:
            result = measure(setting, way, baseline, options)
            results.append(result)
            remarks += [f"- {way} does not run as the others do ({refusal})" for refusal in result.refusals]
        except UnavailableError as error:
            remarks.append(f"- not run: {way}: {error}")
    report.add(f"\n## {setting}\n")
    rows_of_text = [result.cells() for result in results]
    columns = COLUMNS + ON_GPU if any(len(cells) > len(COLUMNS) for cells in rows_of_text) else COLUMNS
    report.add(table(columns, [[*cells, *["–"] * (len(columns) - len(cells))] for cells in rows_of_text]))
    if remarks:
        report.add("\n".join(dict.fromkeys(remarks)) + "\n")
    return results


def best_throughputs(results: Sequence[Result]) -> list[list[str]]:
    """For each pair: the best tokens/s over all micro-batches of either, and their ratio; a fair "at its best"."""
    rows = []

    def group_of(r: Result) -> tuple[str, int, int, str, str, bool, bool]:
        return r.setting.size, r.setting.adapters, r.setting.length, r.way, r.baseline, r.tied, r.linear

    for group in dict.fromkeys(map(group_of, results)):
        size, rank, length, way, baseline, tied, _ = group
        size = f"{size}, LoRA {rank}" if rank else size
        own = [r for r in results if group_of(r) == group]
        best = max(own, key=lambda r: r.setting.num_tokens / r.comparison.median)
        fastest = max(own, key=lambda r: r.setting.num_tokens / r.comparison.baseline_median)
        ours = best.setting.num_tokens / best.comparison.median
        theirs = fastest.setting.num_tokens / fastest.comparison.baseline_median
        rows.append(
            [
                f"{size}, T = {length}: {way}" + ("" if tied else ", untied"),
                f"{ours:,.0f} ({best.setting.rows} rows)",
                baseline,
                f"{theirs:,.0f} ({fastest.setting.rows} rows)",
                f"**{ours / theirs:.2f}**",
            ]
        )
    return rows


def choose_rows(options: argparse.Namespace, all_rows: Sequence[tuple[str, str]] = ROWS) -> list[tuple[str, str]]:
    """The rows that the options ask for."""
    rows = [row for row in all_rows if not options.rows or any(wanted in row[0] for wanted in options.rows)]
    if not rows:
        raise SystemExit(
            f"no row contains {options.rows}; there are: {', '.join(dict.fromkeys(w for w, _ in all_rows))}"
        )
    return [row for row in rows if not any(row[0].startswith(left_out) for left_out in options.skip)]


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """What the benchmarks of training steps have in common."""
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=tuple(PRECISIONS), default="32", help="bf16 and fp16: autocast")
    parser.add_argument("--sizes", nargs="+", choices=tuple(SIZES), default=["cpu-256"])
    parser.add_argument("--lengths", nargs="+", type=int, default=[64], help="tokens of a row")
    parser.add_argument("--micro-batch", nargs="+", type=int, default=[16], help="rows of a micro-batch")
    parser.add_argument("--micro-batches", type=int, default=1, help="micro-batches of one optimizer step")
    parser.add_argument("--adapters", nargs="+", type=int, default=[0], help="rank of LoRA; 0 trains all weights")
    parser.add_argument("--rows", nargs="+", default=[], help="only ways of training whose name contains one of these")
    parser.add_argument("--skip", nargs="+", default=[], help="no ways of training whose name starts with one of these")
    parser.add_argument("--threads", type=int, default=1, help="of torch, on CPU")
    parser.add_argument("--out", type=Path, help="file to write; default: benchmarks/results/NAME-MACHINE.md")
    parser.add_argument("--append", action="store_true", help="keep what the file holds")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every setting and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_arguments(parser)
    parser.add_argument("--repeats", type=int, default=15, help="turns of each row")
    parser.add_argument("--warmup", type=int, default=2, help="steps before a row is timed")
    parser.add_argument("--operations", action="store_true", help="count operations, and time nothing")
    parser.add_argument("--seconds", type=float, default=60.0, help="end a row after so long, but not before 3 turns")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")  # Opacus's backward hooks warn at every step
    torch.set_num_threads(options.threads)
    path = options.out or result_file("clipping", options.device)
    report = Report("Time of a training step", options.device, path, options.append, NOTES)
    results = []
    for size in () if options.operations else options.sizes:
        for length in options.lengths:
            for num_rows, rank in itertools.product(options.micro_batch, options.adapters):
                shape = size, num_rows, length, options.micro_batches
                setting = Setting(*shape, options.device, options.precision, adapters=rank)
                results += run(setting, choose_rows(options), options, report)
    if len(options.micro_batch) > 1 and results:
        report.add("\n## At the best micro-batch of each\n")
        columns = ("training", "its best tokens / s", "baseline", "baseline's best tokens / s", "throughput")
        report.add(table(columns, best_throughputs(results)))
    if options.operations or not options.rows:
        report.add("\n## Dispatched operations of a micro-batch, without an optimizer\n")
        report.add(operations_table(32, options.device, options.precision))


if __name__ == "__main__":
    keep_allocated_memory()
    main()
