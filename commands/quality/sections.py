"""Printed tables in the paper's layout: every setting's cells beside the paper's, nothing pooled that differs."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from commands.pipeline.systems import SYSTEMS, in_order, system
from commands.quality.pool import Cell, Group
from commands.quality.runs import SECTION_FIELDS, Problem

PATH = Path(__file__).with_name("paper_results.yaml")
Place = tuple[float | None, str]
#: What runs agree in that are compared with one another: switches with two-stage, setups that are chosen among.
CONTEXT = (*SECTION_FIELDS, "epsilon", "delta", "unit", "accountant", "num_compared")
SWITCHES = tuple(name for name, known in SYSTEMS.items() if known.is_switch)
NO_CELL = Cell(None, None, 0)
_GROUND_TRUTH = "ground_truth"


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


@dataclass
class Row:
    """A row of a table: a setting's cells, or the gap where one should be.

    Attributes:
        epsilon: Target ε; None for the ground truth.
        group: The runs; None for a gap and for the ground truth.
        beside: The paper's cells, or differences to two-stage.
    """

    epsilon: float | None
    system: str
    group: Group | None
    cells: list[Cell]
    beside: list[str]
    notes: list[str] = field(default_factory=list)


@dataclass
class Section:
    """A printed table: runs on one data set with one base model, parser, featurizer and number of samples.

    Attributes:
        key: Value of each of ``SECTION_FIELDS``.
        notes: About the whole.
        beside: Heading of what stands beside our cells; empty: nothing does.
    """

    layout: Layout
    key: Mapping[str, Any]
    rows: list[Row]
    notes: list[str] = field(default_factory=list)
    beside: str = "paper"

    def __post_init__(self) -> None:
        """Sort the rows as the paper does, and say why rows of one system and ε are not one."""
        order = in_order([row.system for row in self.rows])
        self.rows.sort(key=lambda row: (_falling(row.epsilon), order.index(row.system)))
        self.notes += _differences(self.rows)


@cache
def layouts() -> tuple[Layout, ...]:
    """Every table, in the paper's order."""
    content = yaml.safe_load(PATH.read_text(encoding="utf-8"))
    metrics = {name: Metric(**fields) for name, fields in content["metrics"].items()}
    return tuple(_layout(entry, metrics) for entry in content["tables"])


def _layout(entry: dict[str, Any], metrics: dict[str, Metric]) -> Layout:
    values: dict[Place, tuple[str, ...]] = {}
    for epsilon, row in entry.pop("rows").items():
        for name, text in row.items():
            cells = tuple(cell.strip().replace("±", " ± ") for cell in str(text).split(" / "))
            if len(cells) != len(entry["metrics"]):
                raise ValueError(f"{PATH}: table {entry['id']}, {epsilon}, {name}: one value for each metric")
            values[None if epsilon == "-" else float(epsilon), name] = cells
    columns = tuple(metrics[name] for name in entry.pop("metrics"))
    return Layout(**{**entry, "of": tuple(entry["of"])}, metrics=columns, values=values)


def paper_sections(layout: Layout, groups: Sequence[Group], problems: Sequence[Problem]) -> list[Section]:
    """One of the paper's tables, printed for each data set, model and so on that has runs for it."""
    parts = []
    columns = {name for _, name in layout.values} | ({"domain"} if layout.id == "1" else set())
    for key, members in _by_section(group for group in groups if layout.holds(group.key)):
        if layout.requires and all(group.key["system"] != layout.requires for group in members):
            continue
        experiments = {group.key["experiment"] for group in members}
        rows = []
        for group in members:
            place = (group.key["epsilon"], group.key["system"])
            if layout.missing_function is None and place[1] not in columns:
                continue
            row = _row(group, layout)
            row.notes += _left_out(problems, place, key["fingerprint"], experiments)
            rows.append(row)
        for place in layout.values.keys() - {(row.epsilon, row.system) for row in rows}:
            if place[1] == _GROUND_TRUTH:
                rows.append(Row(*place, None, _ground_truth(layout, members), layout.paper(place)))
            else:
                notes = _left_out(problems, place, key["fingerprint"], experiments)
                rows.append(_gap(place, layout, notes or ["no run"]))
        parts.append(Section(layout, key, rows, [layout.note] * bool(layout.note)))
    return parts


def switch_sections(groups: Sequence[Group]) -> list[Section]:
    """Switches beyond the paper: two-stage rows, and beside each switch at the same ε its difference to them.

    A difference is a dash where there is no two-stage row to compare with, or more than one to choose from.
    """
    layout = Layout("S", "switches beyond the paper", layouts()[0].metrics)
    known = [g for g in groups if g.key["kind"] == "generation" and g.key["system"] in (*SWITCHES, "two_stage")]
    parts = []
    for key, members in _by_section(known):
        faithful = [group for group in members if group.key["system"] == "two_stage"]
        switched = [group for group in members if group.key["system"] != "two_stage"]
        wanted = {_context(group) for group in switched}
        rows = [_row(group, layout) for group in faithful if _context(group) in wanted]
        rows += [_compared(group, faithful, layout) for group in switched]
        found = {(row.epsilon, row.system) for row in rows}
        for place in {(epsilon, name) for epsilon, _ in found for name in SWITCHES} - found:
            rows.append(_gap(place, layout, ["no run"]))
        if switched:
            parts.append(Section(layout, key, rows, beside="− 2-stage"))
    return parts


def other_sections(groups: Sequence[Group]) -> list[Section]:
    """Tables in the same layout for what the paper has no place for: other data, sweeps."""
    parts = []
    for kind in ("generation", "adaptation"):
        layout = next(replace(layout, id="other", note="", values={}) for layout in layouts() if layout.kind == kind)
        for key, members in _by_section(group for group in groups if group.key["kind"] == kind):
            rows = [_row(group, layout) for group in members]
            parts.append(Section(replace(layout, title="runs outside the paper's tables"), key, rows, beside=""))
    return parts


def label_of(name: str) -> str:
    """A system as tables call it."""
    return "ground truth" if name == _GROUND_TRUTH else system(name).label


def format_epsilon(epsilon: float | None, of: str = "") -> str:
    """ε as a table shows it; without privacy it says so."""
    if of == "none":
        return "public data alone"
    if of == "full" or epsilon == math.inf:
        return "∞ (not private)"
    return "–" if epsilon is None else f"{epsilon:g}"


def format_data(key: Mapping[str, Any]) -> str:
    """A data set's name and the first digits of its fingerprint."""
    print_ = str(key["fingerprint"])
    return f"{key['data']} ({print_ if print_.startswith('unknown') else print_[:8]})"


def _by_section(groups: Iterable[Group]) -> list[tuple[dict[str, Any], list[Group]]]:
    parts: dict[tuple[Any, ...], list[Group]] = {}
    for group in groups:
        parts.setdefault(tuple(group.key[name] for name in SECTION_FIELDS), []).append(group)
    found = sorted(parts.items(), key=lambda item: str(item[0]))
    return [(dict(zip(SECTION_FIELDS, values, strict=True)), members) for values, members in found]


def _context(group: Group) -> tuple[Any, ...]:
    return tuple(group.key[name] for name in CONTEXT)


def _row(group: Group, layout: Layout) -> Row:
    place = (group.key["epsilon"], group.key["system"])
    cells = [group.cell(metric.name(group.key)) for metric in layout.metrics]
    notes = [f"what ε does not cover: {group.key['caveats']}"] if group.key["caveats"] else []
    notes += [] if group.points else ["no run counts"]
    return Row(*place, group, cells, layout.paper(place), [*notes, *group.notes])


def _gap(place: Place, layout: Layout, notes: list[str]) -> Row:
    return Row(*place, None, [NO_CELL] * len(layout.metrics), layout.paper(place), notes)


def _compared(group: Group, faithful: Sequence[Group], layout: Layout) -> Row:
    """A switch beside the two-stage row of its own experiment, or the only one of its context."""
    row = _row(group, layout)
    same = [other for other in faithful if _context(other) == _context(group)]
    own = [other for other in same if other.key["experiment"] == group.key["experiment"]]
    base = own or same
    if len(base) == 1:
        means = [(cell.mean, base[0].cell(m.key).mean, m) for cell, m in zip(row.cells, layout.metrics, strict=True)]
        row.beside = [f"{a - b:+.{m.digits}f}" if a is not None and b is not None else "–" for a, b, m in means]
    elif base:
        row.notes.append("several two-stage rows to compare with, so none was chosen")
    else:
        row.notes.append("no two-stage run at the same ε, δ, unit, data, model and number of samples")
    return row


def _left_out(problems: Iterable[Problem], place: Place, fingerprint: str, experiments: Collection[str]) -> list[str]:
    """What kept runs out of this very cell; a problem without a place is listed below the tables alone."""

    def is_here(problem: Problem) -> bool:
        if problem.experiment is not None:
            own = problem.experiment in experiments and problem.epsilon == place[0]
            return own and problem.system in (place[1], None)
        known = problem.fingerprint in (fingerprint, None) and problem.epsilon in (place[0], None)
        return known and problem.system == place[1]

    return [f"{problem.path} left out: {problem.text}" for problem in problems if is_here(problem)]


def _ground_truth(layout: Layout, members: Sequence[Group]) -> list[Cell]:
    """Real reference utterances, annotated by the parser, against their gold trees: one value for each seed."""
    cells = []
    for metric in layout.metrics:
        names = {f"ground_truth_{metric.key}", f"ground_truth_{metric.key.removeprefix('parsed_')}"}
        by_seed: dict[int | None, list[float]] = {}
        for point in (point for group in members for point in group.points):
            for name in names & point.values.keys():
                value = point.values[name]
                if value is not None:
                    by_seed.setdefault(point.seed, []).append(value)
        means = [Cell.of(values).mean for values in by_seed.values()]
        cells.append(Cell.of([mean for mean in means if mean is not None], "" if means else "no report has it"))
    return cells


def _falling(epsilon: float | None) -> float:
    """Ground truth, ε = ∞, then falling ε."""
    return -math.inf if epsilon is None else max(-epsilon, -1e300)


def _differences(rows: Sequence[Row]) -> list[str]:
    """Say in what the rows of one system and ε differ: the reason why they are not one row."""
    notes = []
    places: dict[Place, list[Group]] = {}
    for row in rows:
        if row.group is not None:
            places.setdefault((row.epsilon, row.system), []).append(row.group)
    for (epsilon, name), groups in places.items():
        if len(groups) > 1:
            names = [key for key in groups[0].key if len({str(group.key[key]) for group in groups}) > 1]
            told = f"{label_of(name)} at ε = {format_epsilon(epsilon)}"
            notes.append(f"{told} has {len(groups)} rows, not pooled: they differ in {', '.join(names)}.")
    return notes
