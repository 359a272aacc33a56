"""Result tables in the paper's layout: every run's cell beside the paper's, nothing pooled that differs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from commands.results.paper import Metric, PaperTable, systems
from commands.results.pool import Cell, Group
from commands.results.runs import Problem

#: What all rows of one printed table share.
SECTION_FIELDS = [
    "data",
    "fingerprint",
    "reference",
    "base_model",
    "num_samples",
    "parser",
    "featurizer",
    "counting",
    "missing_function",
]
NO_CELL = Cell(None, None, 0)


@dataclass
class Row:
    """A row of a table: a setting's cells, or the gap where the paper has one.

    Attributes:
        epsilon: Target ε; None for the ground truth.
        system: Name in the reports.
        group: The runs; None if there are none, or for the ground truth.
        cells: One for each metric.
        paper: The paper's cells; "–" where it has none.
        notes: About the row.
    """

    epsilon: float | None
    system: str
    group: Group | None
    cells: list[Cell]
    paper: list[str]
    notes: list[str] = field(default_factory=list)


@dataclass
class Section:
    """A printed table: runs on one data set with one base model, parser, featurizer and number of samples.

    Attributes:
        table: The paper's table; its metrics are the columns.
        key: Value of each of ``SECTION_FIELDS``; empty if there are no runs.
        rows: In the paper's order.
        notes: About the whole.
    """

    table: PaperTable
    key: Mapping[str, Any]
    rows: list[Row]
    notes: list[str]


def sections(table: PaperTable, groups: Sequence[Group], problems: Sequence[Problem]) -> list[Section]:
    """The printed tables of one of the paper's tables.

    Args:
        table: The paper's table.
        groups: All settings found; those that belong in the table are taken.
        problems: What kept runs out.

    Returns:
        One for each data set, model and so on, or none if no run belongs here.
    """
    by_key: dict[tuple[Any, ...], list[Group]] = {}
    for group in groups:
        if table.holds(group.key):
            by_key.setdefault(tuple(group.key[name] for name in SECTION_FIELDS), []).append(group)
    return [
        _section(table, dict(zip(SECTION_FIELDS, key, strict=True)), members, problems)
        for key, members in sorted(by_key.items(), key=lambda item: str(item[0]))
        if table.requires is None or any(group.key["system"] == table.requires for group in members)
    ]


def _section(table: PaperTable, key: dict[str, Any], members: list[Group], problems: Sequence[Problem]) -> Section:
    columns = _columns(table)
    shown = [group for group in members if group.key["system"] in columns or "missing_function" in table.where]
    experiments = {group.key["experiment"] for group in members}
    rows = []
    found = {(group.key["epsilon"], group.key["system"]) for group in shown}
    for group in shown:
        place = (group.key["epsilon"], group.key["system"])
        notes = [*group.notes, *_left_out(problems, place, key["fingerprint"], experiments)]
        if not group.points:
            notes.insert(0, "no run counts")
        if group.key["caveats"]:
            notes.insert(0, f"what ε does not cover: {group.key['caveats']}")
        cells = [group.cell(metric_key(metric, key)) for metric in table.metrics]
        rows.append(Row(*place, group, cells, _paper(table, place), notes))
    for place in table.values.keys() - found:
        if place[1] == "ground_truth":
            rows.append(Row(*place, None, _ground_truth(table, members), _paper(table, place)))
            continue
        notes = _left_out(problems, place, key["fingerprint"], experiments) or ["no run"]
        rows.append(Row(*place, None, [NO_CELL] * len(table.metrics), _paper(table, place), notes))
    rows.sort(key=order_of)
    return Section(table, key, rows, [table.note] * bool(table.note) + differences(rows))


def metric_key(metric: Metric, key: Mapping[str, Any]) -> str:
    """A metric's name in the reports of a run."""
    return metric.key.replace("{missing}", str(key["missing_function"]))


def format_cell(cell: Cell, metric: Metric) -> str:
    """Mean ± unbiased standard deviation; a dash where there is no value, no ± where there is one."""
    if cell.mean is None:
        return "–"
    text = f"{cell.mean * metric.scale:.{metric.digits}f}"
    return text if cell.std is None else f"{text} ± {cell.std * metric.scale:.{metric.digits}f}"


def format_epsilon(epsilon: float | None, system: str = "") -> str:
    """ε as a table shows it; without privacy it says so."""
    if system == "none":
        return "public data alone"
    if system == "full" or epsilon == math.inf:
        return "∞ (not private)"
    return "–" if epsilon is None else f"{epsilon:g}"


def _columns(table: PaperTable) -> set[str]:
    """The paper's systems, and the others of the first table, so that no ordinary run is lost."""
    return {system for _, system in table.values} | ({"domain"} if table.id == "1" else set())


def _paper(table: PaperTable, place: tuple[float | None, str]) -> list[str]:
    cells = table.values.get(place)
    return ["–" if cell == "-" else cell for cell in cells] if cells else ["–"] * len(table.metrics)


def _left_out(
    problems: Iterable[Problem], place: tuple[float | None, str], fingerprint: str, experiments: Collection[str]
) -> list[str]:
    """What kept runs out of this very cell; a problem without a place is listed below the tables alone."""
    notes = []
    for problem in problems:
        if problem.experiment is not None:
            is_here = problem.experiment in experiments and problem.epsilon == place[0]
            is_here = is_here and problem.system in (place[1], None)
        else:
            is_here = problem.fingerprint in (fingerprint, None) and problem.epsilon in (place[0], None)
            is_here = is_here and problem.system == place[1]
        if is_here:
            notes.append(f"{problem.path} left out: {problem.text}")
    return notes


def _ground_truth(table: PaperTable, members: Sequence[Group]) -> list[Cell]:
    """Real reference utterances, annotated by the parser, against their gold trees: one value for each seed."""
    cells = []
    for metric in table.metrics:
        names = (f"ground_truth_{metric.key}", f"ground_truth_{metric.key.removeprefix('parsed_')}")
        by_seed: dict[int | None, list[float]] = {}
        for group in members:
            for point in group.points:
                for name in names:
                    value = point.values.get(name)
                    if value is not None:
                        by_seed.setdefault(point.seed, []).append(value)
        means = [statistics.fmean(values) for values in by_seed.values()]
        std = statistics.stdev(means) if len(means) > 1 else None
        note = "" if means else "no report has it"
        cells.append(Cell(statistics.fmean(means) if means else None, std, len(means), note))
    return cells


def order_of(row: Row) -> tuple[float, int, str]:
    """Sorts rows as the paper does: ground truth, ε = ∞, then falling ε; systems in their order."""
    order = list(systems())
    rank = order.index(row.system) if row.system in order else len(order)
    epsilon = math.inf if row.epsilon is None else row.epsilon
    return -math.inf if row.epsilon is None else -epsilon if epsilon < math.inf else -1e300, rank, row.system


def differences(rows: Sequence[Row]) -> list[str]:
    """Say in what the rows of one system and ε differ: the reason why they are not one row."""
    notes = []
    places: dict[tuple[float | None, str], list[Group]] = {}
    for row in rows:
        if row.group is not None:
            places.setdefault((row.epsilon, row.system), []).append(row.group)
    for (epsilon, system), groups in places.items():
        if len(groups) > 1:
            names = [name for name in groups[0].key if len({str(group.key[name]) for group in groups}) > 1]
            told = f"{systems().get(system, system)} at ε = {format_epsilon(epsilon)}"
            notes.append(f"{told} has {len(groups)} rows, not pooled: they differ in {', '.join(names)}.")
    return notes
