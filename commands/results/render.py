"""Writes result tables as Markdown and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from commands.results.paper import systems
from commands.results.pool import Group
from commands.results.privacy import VOID
from commands.results.runs import KEY_FIELDS
from commands.results.tables import SECTION_FIELDS, Row, Section, format_cell, format_epsilon

#: Columns of a row's setting, with their headings; those that are equal in all rows are said above the table.
_SETTING = {
    "delta": "δ",
    "unit": "unit",
    "accountant": "accountant",
    "experiment": "experiment",
    "num_compared": "compared",
    "training": "training",
}
_LONG = ("num_compared", "training")
_HEADINGS = {
    "data": "data",
    "reference": "reference",
    "base_model": "model",
    "num_samples": "samples",
    "parser": "parser",
    "featurizer": "MAUVE features",
    "counting": "function types",
    "missing_function": "missing function",
}


def markdown(section: Section, beside: str = "paper") -> str:
    """One table with its setting above and its notes below.

    Args:
        section: The table.
        beside: Heading of the columns beside ours; empty leaves them out.
    """
    groups = [row.group for row in section.rows if row.group is not None]
    varying = [name for name in _SETTING if _varies(section, name)]
    constant = [(_HEADINGS[name], _of_section(section, name)) for name in _HEADINGS]
    constant += [(_SETTING[name], _only(groups, name)) for name in _SETTING if name not in (*varying, "training")]
    told = " · ".join(f"{heading}: {text}" for heading, text in constant if text != "–")
    lines = [f"**{told}**", ""]
    header = ["ε", "system"]
    for metric in section.table.metrics:
        header += [metric.label, beside] if beside else [metric.label]
    header += ["seeds", "ε spent", *(_SETTING[name] for name in varying), "commit"]
    notes: list[str] = []
    lines += [_line(header), _line(["---"] * len(header))]
    lines += [_line(_cells(section, row, varying, notes, bool(beside))) for row in section.rows]
    lines += [""]
    lines += [f"- {note}" for note in section.notes]
    lines += [f"- [{number}] {note}" for number, note in enumerate(notes, start=1)]
    return "\n".join(lines).rstrip() + "\n"


def _cells(section: Section, row: Row, varying: Sequence[str], notes: list[str], has_paper: bool) -> list[str]:
    def mark(note: str) -> str:
        if note not in notes:
            notes.append(note)
        return f" [{notes.index(note) + 1}]"

    about = "".join(mark(note) for note in row.notes)
    void = row.group is not None and row.group.key["caveats"].startswith(VOID)
    epsilon = format_epsilon(row.epsilon, row.system) + (" (void: not private)" if void else "")
    cells = [epsilon, systems().get(row.system, row.system)]
    for metric, cell, paper in zip(section.table.metrics, row.cells, row.paper, strict=True):
        missing = mark(cell.note) if cell.note else about if cell.mean is None else ""
        cells += [format_cell(cell, metric) + missing, *([paper] if has_paper else [])]
    if row.group is None:
        return cells + ["–"] * (3 + len(varying))
    key, spent = row.group.key, row.group.spent
    cells.append(f"{len(row.group.points)}{about}")
    cells.append("–" if spent is None else f"{spent:.3f}")
    cells += [_show(name, key[name]) for name in varying]
    return [*cells, ", ".join(_commit(commit) for commit in row.group.commits) or "–"]


def csv_table(parts: Iterable[Section], beside: str = "paper") -> str:
    """All sections of one table, a line for each row: its setting, then mean, std, seeds and note of each metric."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    header_written = False
    for section in parts:
        if not header_written:
            header = ["title", *KEY_FIELDS, "epsilon_spent", "num_seeds", "seeds", "commits", "runs", "notes"]
            for metric in section.table.metrics:
                header += [f"{metric.label} {what}" for what in ("mean", "std", "seeds", "note", beside)]
            writer.writerow(header)
            header_written = True
        for row in section.rows:
            writer.writerow(_csv_row(section, row))
    return out.getvalue()


def _csv_row(section: Section, row: Row) -> list[Any]:
    if row.group is not None:
        fields: list[Any] = [row.group.key[name] for name in KEY_FIELDS]
        points = row.group.points
        fields += [row.group.spent, len(points), " ".join(str(point.seed) for point in points)]
        fields += [" ".join(row.group.commits), " ".join(point.path for point in points)]
    else:
        known = {**section.key, "kind": section.table.kind, "system": row.system, "epsilon": row.epsilon}
        fields = [known.get(name) for name in KEY_FIELDS] + [None, 0, "", "", ""]
    cells: list[Any] = [section.table.title, *("" if value is None else value for value in fields)]
    cells.append("; ".join(row.notes))
    for metric, cell, paper in zip(section.table.metrics, row.cells, row.paper, strict=True):
        values = [None if value is None else round(value * metric.scale, 6) for value in (cell.mean, cell.std)]
        cells += ["" if value is None else value for value in values]
        cells += [cell.num, cell.note, "" if paper == "–" else paper]
    return cells


def csv_of_all(groups: Iterable[Group]) -> str:
    """Every metric of every setting, a line each."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*KEY_FIELDS, "epsilon_spent", "metric", "mean", "std", "num_seeds", "commits", "runs", "note"])
    for group in groups:
        setting = ["" if group.key[name] is None else group.key[name] for name in KEY_FIELDS]
        runs = " ".join(point.path for point in group.points)
        for metric in group.metrics():
            cell = group.cell(metric)
            values = ["" if value is None else round(value, 6) for value in (cell.mean, cell.std)]
            spent = "" if group.spent is None else group.spent
            writer.writerow([*setting, spent, metric, *values, cell.num, " ".join(group.commits), runs, cell.note])
    return out.getvalue()


def _varies(section: Section, name: str) -> bool:
    """Whether a column is needed; long ones only where they alone tell two rows apart."""
    told: dict[Any, set[str]] = {}
    for row in section.rows:
        if row.group is not None:
            short = tuple(_show(other, row.group.key[other]) for other in _SETTING if other not in _LONG)
            place = (row.epsilon, row.system, short) if name in _LONG else None
            told.setdefault(place, set()).add(_show(name, row.group.key[name]))
    return any(len(texts - {"–"}) > 1 for texts in told.values())


def _of_section(section: Section, name: str) -> str:
    assert name in SECTION_FIELDS
    return format_data(section.key) if name == "data" else _show(name, section.key.get(name))


def format_data(key: Mapping[str, Any]) -> str:
    """A data set's name and the first digits of its fingerprint."""
    print_ = str(key["fingerprint"])
    return f"{key['data']} ({print_ if print_.startswith('unknown') else print_[:8]})"


def _only(groups: Sequence[Group], name: str) -> str:
    told = {_show(name, group.key[name]) for group in groups} - {"–"}
    return told.pop() if len(told) == 1 else "–"


def _show(name: str, value: Any) -> str:
    if value is None or value == "":
        return "–"
    if name == "delta":
        return f"{value:.3g}"
    return str(value).replace("|", "\\|")


def _commit(commit: str) -> str:
    return f"{commit[:8]}{'+dirty' if commit.endswith('+dirty') else ''}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
