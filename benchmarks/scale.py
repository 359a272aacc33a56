"""What a million rows cost: CPU seconds and peak memory of all that reads each row.

    python -m benchmarks.scale [--rows 10000 100000 1000000] [--only NAME…]

Rows are requests of the embedded grammar with a number behind each, so that no two are equal; ten belong to one user.
Each cost is measured in a process of its own, so that its peak is its own: it holds the libraries, which the first line
has alone, and what is measured. What came before, such as the rows in memory that are counted, costs no time, but lies
beneath the peak. One thread, so that CPU seconds are seconds of one core.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from benchmarks._harness import Report, table

#: Values of the eight columns of attributes, ``0`` to one less each.
SIZES = {"stars": 5, "category": 20, "hour": 24, "device": 4, "language": 6, "weekday": 7, "paid": 2, "length": 8}
#: Texts that are embedded, for all of a million take too long: the seconds are those of all rows, as if it had.
EMBEDDED = 1_000
#: Entries of an embedding, candidates that are voted for, and samples that are compared with private texts.
WIDTH, CANDIDATES, SAMPLES = 384, 900, 1_000
BASE = Path(__file__).parents[1] / "models" / "base"

#: Does what is measured: the function that it is given times a piece of it, and returns what the piece returned.
Timed = Callable[[Callable[[], Any]], Any]


def write_rows(path: Path, num_rows: int) -> None:
    """Write a table of private rows; a longer one begins like a shorter one."""
    from doppel.grammar import generate

    rng, turns = random.Random(1), list(generate(20_000, seed=1))
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "label", "unit", *SIZES])
        for row in range(num_rows):
            turn = turns[row % len(turns)]
            cells = (rng.randrange(size) for size in SIZES.values())
            rows.writerow([f"{turn.utterance} {row}", turn.domain, f"user {row // 10}", *cells])


def libraries(timed: Timed, rows: Path, num_rows: int) -> None:
    """nothing (the libraries alone)"""
    import transformers  # noqa: F401

    import datamodules.dialogue_data_module  # noqa: F401

    timed(lambda: None)


def reading(timed: Timed, rows: Path, num_rows: int) -> None:
    """reading and tokenising"""
    from datamodules.batches.encoded import encode_examples
    from datamodules.reading.examples import read_examples

    text_format = _text_format()
    timed(lambda: encode_examples(read_examples(str(rows), "user", needs=text_format.needs), text_format))


def batch(timed: Timed, rows: Path, num_rows: int) -> None:
    """a batch of N/20 users"""
    from datamodules.dialogue_data_module import DialogueDataModule

    data = DialogueDataModule(str(rows), unit="user")
    data.text_format = _text_format()
    data.setup("fit")
    batches = iter(data.train_dataloader())
    timed(lambda: next(batches))


def histogram(timed: Timed, rows: Path, num_rows: int) -> None:
    """noisy histogram of labels"""
    from doppel.privacy.histogram import unit_sums
    from doppel.privacy.release import NoisyHistogram

    turns = _turns(rows)
    labels = sorted({turn.label for turn in turns})
    timed(lambda: NoisyHistogram(10.0).draw(unit_sums(((turn.unit, {turn.label: 1.0}) for turn in turns), labels)))


def topics(timed: Timed, rows: Path, num_rows: int) -> float:
    """topics with embeddings"""
    from commands.privacy.feature_extractors import embed
    from doppel.text.topics import make_codebook

    texts = [turn.utterance for turn in _turns(rows)[:EMBEDDED]]
    book = make_codebook([], texts, embed(texts, "minilm"), 20, "minilm")
    timed(lambda: book.nearest(embed(texts, "minilm", independent=True)))
    return num_rows / len(texts)


def votes(timed: Timed, rows: Path, num_rows: int) -> None:
    """votes for 900 candidates"""
    import numpy as np

    from doppel.evolution.votes import NearestNeighbourHistogram

    draw = np.random.default_rng(1)
    part = draw.uniform(-0.1, 0.1, (10_000, WIDTH)).astype(np.float32)  # of all rows, again and again
    parts = (part[: num_rows - start] for start in range(0, num_rows, len(part)))
    candidates = draw.uniform(-0.1, 0.1, (CANDIDATES, WIDTH)).astype(np.float32)
    units = [f"user {row // 10}" for row in range(num_rows)]
    timed(lambda: NearestNeighbourHistogram(parts, units).sums(candidates, votes_each=8))


def marginals(timed: Timed, rows: Path, num_rows: int) -> None:
    """AIM on eight columns"""
    timed(lambda: _rows_of_attributes(rows, "aim", 1_000))


def copies(timed: Timed, rows: Path, num_rows: int) -> None:
    """copies among 1,000 samples"""
    from doppel.metrics.copies import CopyIndex

    texts = [turn.utterance for turn in _turns(rows)]
    samples = [f"please {text}" for text in texts[:: max(1, num_rows // SAMPLES)][:SAMPLES]]
    timed(lambda: CopyIndex(texts).are_near(samples))


def verify(timed: Timed, rows: Path, num_rows: int) -> None:
    """`verify` of N rows of attributes"""
    from commands.privacy.verify import verify as check

    made = _rows_of_attributes(rows, "independent", num_rows)
    timed(lambda: check(made))


#: In the order of the table.
COSTS: dict[str, Callable[[Timed, Path, int], float | None]] = {
    cost.__name__: cost for cost in (libraries, reading, batch, histogram, topics, votes, marginals, copies, verify)
}


def _text_format() -> Any:
    from transformers import AutoTokenizer

    from datamodules.text_format import TextFormat

    return TextFormat(AutoTokenizer.from_pretrained(BASE), None, "utterance", 128, task_prefix=True)


def _turns(rows: Path) -> list[Any]:
    from datamodules.reading.examples import read_examples

    return read_examples(str(rows), "user", with_trees=False)


def _rows_of_attributes(rows: Path, method: Any, num_rows: int) -> Path:
    """Private rows like those of the table, with a ledger of their own."""
    from commands.privacy.metadata import metadata

    folder = Path(tempfile.mkdtemp(dir=rows.parent))
    schema = folder / "schema.yaml"
    schema.write_text("".join(f"{name}: {[*range(size)]}\n" for name, size in SIZES.items()), encoding="utf-8")
    out = folder / "rows.csv"
    with redirect_stdout(io.StringIO()):
        metadata(str(rows), out=out, num_rows=num_rows, epsilon=1.0, schema=schema, method=method, unit="user")
    return out


def measure(name: str, rows: Path, num_rows: int) -> dict[str, Any]:
    """Measure one cost in this process.

    Returns:
        ``seconds`` of the CPU, ``peak`` bytes of memory, and ``scale``: how many times as many rows there are.
    """
    found: dict[str, Any] = {}

    def timed(piece: Callable[[], Any]) -> Any:
        start = time.process_time()
        returned = piece()
        found["seconds"] = time.process_time() - start
        return returned

    found["scale"] = COSTS[name](timed, rows, num_rows) or 1.0
    peak = re.search(r"^VmHWM:\s*(\d+) kB$", Path("/proc/self/status").read_text(encoding="utf-8"), re.M)
    return {**found, "peak": int(peak[1]) * 1024 if peak else 0}


def _in_own_process(name: str, rows: Path, num_rows: int) -> list[str]:
    """A row of the table."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    key = {"DOPPEL_KEY": str(rows.parent / "key"), "TOKENIZERS_PARALLELISM": "false"}
    words = [sys.executable, "-m", "benchmarks.scale", "--measure", name, str(rows), str(num_rows)]
    done = subprocess.run(words, env={**os.environ, **threads, **key}, capture_output=True, text=True)
    title = str(COSTS[name].__doc__)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        return [title, f"failed: {last[:80]}", ""]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    about = "≈ " if found["scale"] > 1 else ""
    row = [title, f"{about}{found['seconds'] * found['scale']:,.2f}", f"{found['peak'] / 2**30:.2f}"]
    sys.stderr.write(f"{num_rows:,} rows, {': '.join(row[:2])} s\n")  # a million of them take a while
    return row


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--only", nargs="+", choices=list(COSTS), default=list(COSTS))
    parser.add_argument("--out", type=Path, help="Markdown file to write")
    parser.add_argument("--measure", nargs=3, metavar=("NAME", "TABLE", "ROWS"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.measure is not None:
        name, rows, num_rows = options.measure
        print(json.dumps(measure(name, Path(rows), int(num_rows))))
        return
    report = Report("Cost against the number of rows", "cpu", options.out, append=False)
    for num_rows in options.rows:
        with tempfile.TemporaryDirectory() as folder:
            rows = Path(folder) / "rows.csv"
            write_rows(rows, num_rows)
            lines = [_in_own_process(name, rows, num_rows) for name in options.only]
        report.add(table([f"{num_rows:,} rows", "CPU s", "peak GB"], lines))


if __name__ == "__main__":
    main()
