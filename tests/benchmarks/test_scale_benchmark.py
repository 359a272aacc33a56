"""The benchmark of many rows: every cost can be measured, of rows that do not depend on how many there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.scale import COSTS, measure, write_rows


def test_a_longer_table_begins_like_a_shorter_one(tmp_path: Path) -> None:
    for num_rows in (30, 90):
        write_rows(tmp_path / f"{num_rows}.csv", num_rows)
    short, long = ((tmp_path / f"{num_rows}.csv").read_text().splitlines() for num_rows in (30, 90))
    assert long[: len(short)] == short and len(set(long)) == 91


@pytest.mark.parametrize("name", sorted(COSTS.keys() - {"topics"}))  # which need MiniLM, and a minute
def test_every_cost_is_measured(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOPPEL_KEY", str(tmp_path / "key"))
    rows = tmp_path / "rows.csv"
    write_rows(rows, 400)
    found = measure(name, rows, 400)
    assert found["seconds"] > 0 and found["peak"] > 2**26 and found["scale"] == 1
