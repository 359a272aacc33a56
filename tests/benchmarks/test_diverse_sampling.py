"""The benchmark of diverse sampling runs at a tiny size and writes its table."""

from __future__ import annotations

from pathlib import Path

from benchmarks import diverse_sampling


def test_the_table_has_a_row_for_each_method_and_size(tmp_path: Path) -> None:
    path = tmp_path / "table.md"
    diverse_sampling.main(["--sizes", "60", "--methods", "cmaxent", "--k", "20", "--out", str(path)])
    lines = [line.split(" | ") for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    assert len(lines) == 3 and lines[2][0] == "| cmaxent" and lines[2][1] == "60"
    assert 20 <= int(lines[2][2]) <= 60
