"""Learning curves: every way of choosing has a line, and means stand where they belong."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks._curves import draw_curves


def test_a_curve_for_each_way_of_choosing(tmp_path: Path) -> None:
    values = {"uniform": {100: [0.1, 0.3], 200: [0.3]}, "uat": {100: [0.4], 200: [0.5]}}
    path = tmp_path / "new" / "curves.svg"
    draw_curves(
        path, {"exact match": values, "other": {"uat": {100: [0.1]}}}, {"exact match": [0.05]}, "annotated rows"
    )
    text = path.read_text(encoding="utf-8")
    for words in ("exact match, %", "other, %", "annotated rows", "uniform", "uat", "none"):
        assert f"<!-- {words} -->" in text
    (points,) = re.findall(r'd="M ([\d.]+) ([\d.]+) \nL ([\d.]+) ([\d.]+) \n" [^>]*stroke: #0072b2', text)[:1]
    (ours,) = re.findall(r'd="M ([\d.]+) ([\d.]+) \nL ([\d.]+) ([\d.]+) \n" [^>]*stroke: #e69f00', text)[:1]
    assert points[0] == ours[0] and points[2] == ours[2]
    per_point = (float(points[1]) - float(points[3])) / 10  # of uat, from 40 to 50 %
    assert abs((float(ours[1]) - float(ours[3])) / per_point - 10) < 0.1  # of uniform, from a mean of 20 to 30 %
