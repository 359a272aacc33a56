"""Files for the experiment on control codes: reviews with labels, some of them private, the others public, all cut.

    python -m benchmarks.control_codes $DOPPEL_DATA/yelp/dev.csv --out data/yelp [--rows 4000] [--tokens 48]

Writes ``private.csv``, ``public.csv`` and ``labels.txt`` with every pair of a category and stars. A row is cut by
itself, at a space, so that no row learns of another; the cut is a choice of this benchmark, for time.
"""

from __future__ import annotations

import argparse
import csv
import random
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from lightning_modules.backbone.base_models import load_tokenizer

LABELS = ("label1", "label2")


def cut(text: str, tokenizer: Any, most: int) -> str:
    """A text in one line, of at most so many tokens."""
    text = " ".join(text.split())
    starts = [start for start, _ in tokenizer(text, return_offsets_mapping=True)["offset_mapping"]]
    return text if len(starts) <= most else text[: starts[most]].rsplit(" ", 1)[0].strip()


def main(argv: Sequence[str] | None = None) -> None:
    """Write the three files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=4000, help="private rows")
    parser.add_argument("--tokens", type=int, default=48, help="of a text, at most")
    given = parser.parse_args(argv)
    with given.source.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    random.Random(0).shuffle(rows)
    tokenizer = load_tokenizer("models/base")
    given.out.mkdir(parents=True, exist_ok=True)
    for name, part in (("private", rows[: given.rows]), ("public", rows[given.rows :])):
        with (given.out / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", *LABELS])
            writer.writerows([cut(row["text"], tokenizer, given.tokens), *map(row.get, LABELS)] for row in part)
    values = [sorted({row[label] for row in rows}) for label in LABELS]
    (given.out / "labels.txt").write_text("".join(f"{' | '.join(code)}\n" for code in product(*values)), "utf-8")


if __name__ == "__main__":
    main()
