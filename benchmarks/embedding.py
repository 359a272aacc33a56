"""How long vectors of private texts take: a text at a time, in batches of exact length, and by all cores.

    python -m benchmarks.embedding [--rows 200000] [--alone 1000]

Rows are those of :mod:`benchmarks.scale`, no two of which are equal; the encoder is ``minilm``. The first two ways read
the first ``--alone`` rows, and the third all of them; each process computes by one thread. Seconds are those of the
clock, CPU seconds those of all processes, with the imports of those that are started. The vectors of the first rows are
held against those of all, bit by bit.

Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import csv
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks._harness import Report, keep_allocated_memory, table
from benchmarks.scale import write_rows


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--alone", type=int, default=1_000, help="rows that are read a text at a time")
    parser.add_argument("--out", type=Path, help="Markdown file to write")
    options = parser.parse_args(argv)
    keep_allocated_memory()

    import torch

    from commands.privacy.embedded_parts import in_parts
    from commands.privacy.feature_extractors import embed, form_of
    from doppel.models.encoders import TextFeaturizer, minilm

    report = Report(
        "Vectors of private texts", "cuda" if torch.cuda.is_available() else "cpu", options.out, append=False
    )
    with tempfile.TemporaryDirectory() as folder:
        write_rows(Path(folder, "rows.csv"), options.rows)
        with Path(folder, "rows.csv").open(encoding="utf-8", newline="") as file:
            texts = [row["text"] for row in csv.DictReader(file)]
        alone = TextFeaturizer(minilm(), pooling="mean", max_length=256)
        alone._is_independent = lambda length: False  # type: ignore[method-assign]
        some = texts[: options.alone]
        form, read = partial(form_of, "minilm"), partial(embed, encoder="minilm", independent=True)
        for reader in (partial(alone.read, independent=True), read):
            reader(some[:64])  # loads, and warms up
        one = _timed(lambda: alone.read(some, independent=True))
        batches = _timed(lambda: read(some))
        cores = _timed(lambda: in_parts(texts, form, Path(folder), read))
        assert (cores[0][: len(some)] == batches[0]).all(), "a split changed a bit"
    shares = {"a text at a time": (one, options.alone), "batches of exact length": (batches, options.alone)}
    shares["the same, all cores"] = (cores, options.rows)
    first = one[1] / options.alone
    lines = []
    for name, ((_, wall, cpu), rows) in shares.items():
        ratio = first / (wall / rows)
        saved = one[2] / options.alone / (cpu / rows)
        cells = (f"{wall:,.1f}", f"{cpu:,.1f}", f"{cpu / rows * 1e3:.2f}", f"{saved:.2f}", f"{ratio:.2f}")
        lines.append([name, f"{rows:,}", *cells])
    heads = ["vectors", "rows", "s", "CPU s", "CPU ms a row", "rows a CPU s, ratio", "rows a s, ratio"]
    report.add(table(heads, lines))


def _timed(piece: Callable[[], Any]) -> tuple[Any, float, float]:
    """What a piece of work returns, its seconds by the clock, and its CPU seconds and those of processes it started."""
    before, start = os.times(), time.perf_counter()
    found = piece()
    after = os.times()
    return found, time.perf_counter() - start, sum(after[:4]) - sum(before[:4])


if __name__ == "__main__":
    main()
