"""The paper's result tables (paper_results.yaml), and which runs belong in each."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

PATH = Path(__file__).with_name("paper_results.yaml")
Place = tuple[float | None, str]


@dataclass(frozen=True)
class Metric:
    """A column: heading, key in the report, decimals and factor of what is printed."""

    label: str
    key: str
    digits: int
    scale: float = 1.0

    def name(self, key: Mapping[str, Any]) -> str:
        """Its name in the reports of runs with these settings."""
        return self.key.replace("{missing}", str(key["missing_function"]))


@dataclass(frozen=True)
class Layout:
    """One table of the paper, or one data set's part of it; or a table like it.

    Attributes:
        id: Its number.
        title: What it shows.
        metrics: Its columns.
        of: Names by which experiments ask for it.
        note: How the paper's setting differs.
        missing_function: Pattern of an adaptation's function; None: of no adaptation.
        requires: System without which the table is not shown.
        values: (ε, system) → the paper's cells, as text; ε is None for the ground truth.
    """

    id: str
    title: str
    metrics: tuple[Metric, ...]
    of: tuple[str, ...] = ()
    note: str = ""
    missing_function: str | None = None
    requires: str | None = None
    values: Mapping[Place, tuple[str, ...]] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """Whether the metrics are of synthetic text or of parsers trained on it."""
        return "adaptation" if any("@" in metric.key for metric in self.metrics) else "generation"

    def holds(self, key: Mapping[str, Any]) -> bool:
        """Whether a run of this key belongs in the table."""
        if key["kind"] != self.kind or key["table"] not in self.of:
            return False
        if self.missing_function is None or key["missing_function"] is None:
            return self.missing_function == key["missing_function"]
        return fnmatch.fnmatchcase(key["missing_function"], self.missing_function)

    def paper(self, place: Place) -> list[str]:
        """The paper's cells; a dash where it has none."""
        return ["–" if cell == "-" else cell for cell in self.values.get(place, "-" * len(self.metrics))]


@cache
def layouts() -> tuple[Layout, ...]:
    """Every table, in the paper's order."""
    content = yaml.safe_load(PATH.read_text(encoding="utf-8"))
    metrics = {name: Metric(**fields) for name, fields in content["metrics"].items()}
    return tuple(_layout(entry, metrics) for entry in content["tables"])


def _layout(entry: dict[str, Any], metrics: dict[str, Metric]) -> Layout:
    values: dict[Place, tuple[str, ...]] = {}
    for epsilon, row in entry.pop("rows").items():
        for system, text in row.items():
            cells = tuple(cell.strip().replace("±", " ± ") for cell in str(text).split(" / "))
            if len(cells) != len(entry["metrics"]):
                raise ValueError(f"{PATH}: table {entry['id']}, {epsilon}, {system}: one value for each metric")
            values[None if epsilon == "-" else float(epsilon), system] = cells
    columns = tuple(metrics[name] for name in entry.pop("metrics"))
    return Layout(**{**entry, "of": tuple(entry["of"])}, metrics=columns, values=values)
