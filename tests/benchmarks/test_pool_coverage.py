"""The table of a pool beside natural programs: shares counted by hand, and a skew that is found again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import pool_coverage

BOOKS = "now => ( @org.schema.Book.Book ) filter param:numberOfPages:Number {} {} => notify"
MOST = "now => ( sort param:numberOfPages:Number desc of ( @org.schema.Book.Book ) ) [ 1 ] => notify"


def write(path: Path, programs: list[str]) -> Path:
    path.write_text("".join(f"row-{n}\tsome words\t{p}\n" for n, p in enumerate(programs)), encoding="utf-8")
    return path


def cells(text: str) -> list[list[str]]:
    return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]


def test_shares_are_those_of_the_natural_file(tmp_path: Path) -> None:
    pool = write(tmp_path / "pool.tsv", [BOOKS.format(">=", n) for n in (5, 6, 7)])
    natural = write(tmp_path / "natural.tsv", [*[BOOKS.format(">=", 9)] * 3, MOST])
    out = tmp_path / "out" / "table.md"
    pool_coverage.main(["--pool", str(pool), "--natural", str(natural), str(pool), "--out", str(out)])
    rows = {(row[0], len(row)): row[1:] for row in cells(out.read_text(encoding="utf-8"))}
    assert rows["pool.tsv", 7][:4] == ["3", "1", "1", "0"]
    assert rows["natural.tsv", 7][:3] == ["4", "2", "2"]
    assert rows["natural.tsv", 6][:2] == ["0.5", "0.75"]
    assert all(0 < float(share) < 1 for share in rows["natural.tsv", 6][2:])
    assert rows["pool.tsv", 6] == ["1"] * 5


@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.7])
def test_the_skew_of_drawn_counts_is_found_again(exponent: float) -> None:
    chances = np.arange(1, 41) ** -exponent
    counts = np.random.default_rng(1).multinomial(100_000, chances / chances.sum())
    assert pool_coverage.skew(np.random.default_rng(2).permutation(counts)) == pytest.approx(exponent, abs=0.03)
