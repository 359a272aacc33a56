"""The paper's result tables (paper_results.yaml), and which runs belong in each."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

PATH = Path(__file__).with_name("paper_results.yaml")


@dataclass(frozen=True)
class Metric:
    """A column: heading, key in the report, decimals and factor of what is printed."""

    label: str
    key: str
    digits: int
    scale: float = 1.0


@dataclass(frozen=True)
class PaperTable:
    """One table of the paper, or one data set's part of it.

    Attributes:
        id: Its number.
        title: What it shows.
        note: How the paper's setting differs.
        metrics: Its columns.
        values: (ε, system) → the paper's cells, as text; ε is None for the ground truth.
        data: Patterns of data sets whose runs belong here.
        where: Field → patterns; a run needs one match, if any are given.
        unless: Field → patterns that keep a run out.
        requires: System without which the table is not shown.
    """

    id: str
    title: str
    note: str
    metrics: tuple[Metric, ...]
    values: Mapping[tuple[float | None, str], tuple[str, ...]]
    data: tuple[str, ...]
    where: Mapping[str, tuple[str, ...]]
    unless: Mapping[str, tuple[str, ...]]
    requires: str | None = None

    @property
    def kind(self) -> str:
        """Whether the metrics are of synthetic text or of parsers trained on it."""
        return "adaptation" if any("@" in metric.key for metric in self.metrics) else "generation"

    def holds(self, key: Mapping[str, Any]) -> bool:
        """Whether a run of this key belongs in the table."""
        if key["kind"] != self.kind or not _matches(key["data"], self.data):
            return False
        if any(_matches(key[name], patterns) for name, patterns in self.unless.items()):
            return False
        if "missing_function" not in self.where and key["missing_function"] is not None:
            return False
        return not self.where or any(_matches(key[name], patterns) for name, patterns in self.where.items())


@cache
def systems() -> dict[str, str]:
    """Systems in the order of the tables → their names there."""
    return dict(_content()["systems"])


@cache
def tables() -> tuple[PaperTable, ...]:
    """Every table, in the paper's order."""
    content = _content()
    metrics = {name: Metric(**fields) for name, fields in content["metrics"].items()}
    return tuple(_table(entry, metrics) for entry in content["tables"])


@cache
def _content() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(PATH.read_text(encoding="utf-8"))
    return content


def _table(entry: dict[str, Any], metrics: dict[str, Metric]) -> PaperTable:
    values = {}
    for epsilon, row in entry["rows"].items():
        for system, text in row.items():
            cells = tuple(cell.strip().replace("±", " ± ") for cell in str(text).split(" / "))
            if len(cells) != len(entry["metrics"]):
                raise ValueError(f"{PATH}: table {entry['id']}, {epsilon}, {system}: one value for each metric")
            values[None if epsilon == "-" else math.inf if epsilon == "inf" else float(epsilon), system] = cells

    def patterns(name: str) -> dict[str, tuple[str, ...]]:
        return {field: tuple(globs) for field, globs in entry.get(name, {}).items()}

    return PaperTable(
        id=entry["id"],
        title=entry["title"],
        note=entry.get("note", ""),
        metrics=tuple(metrics[name] for name in entry["metrics"]),
        values=values,
        data=tuple(entry["data"]),
        where=patterns("where"),
        unless=patterns("unless"),
        requires=entry.get("requires"),
    )


def _matches(value: Any, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatch(str(value).lower(), pattern.lower()) for pattern in patterns)
