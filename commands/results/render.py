"""Result tables as Markdown and CSV."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from commands.results.paper_tables import Metric
from commands.results.pool import Cell, Group
from commands.results.privacy import VOID
from commands.results.runs import KEY_FIELDS
from commands.results.sections import Row, Section, format_epsilon, label_of
from commands.results.table import Table, show

#: What a table's rows share, with its heading.
_SHARED = {
    "data": "data",
    "reference": "reference",
    "base_model": "model",
    "num_samples": "samples",
    "parser": "parser",
    "featurizer": "MAUVE features",
    "counting": "function types",
    "missing_function": "missing function",
}
#: Settings of a row: columns where they differ, else said above the table.
_SETTING = {
    "delta": "δ",
    "unit": "unit",
    "accountant": "accountant",
    "experiment": "experiment",
    "num_compared": "compared",
    "training": "training",
}
_LONG = ("num_compared", "training")


def markdown(section: Section) -> str:
    """One table with its setting above and its notes below."""
    groups = [row.group for row in section.rows if row.group is not None]
    varying = [name for name in _SETTING if _varies(section, name)]
    constant = [(heading, _setting(section.key, name)) for name, heading in _SHARED.items()]
    constant += [(_SETTING[n], _only(groups, n)) for n in _SETTING if n not in (*varying, "training")]
    headings = ["ε", "system"]
    for metric in section.layout.metrics:
        headings += [metric.label, *([section.beside] if section.beside else [])]
    notes: list[str] = []
    table = Table([*headings, "seeds", "ε spent", *(_SETTING[name] for name in varying), "commit"])
    table.rows += [_cells(section, row, varying, notes) for row in section.rows]
    lines = [f"**{' · '.join(f'{heading}: {text}' for heading, text in constant if text != '–')}**", ""]
    lines += [table.markdown(), "", *(f"- {note}" for note in section.notes)]
    lines += [f"- [{number}] {note}" for number, note in enumerate(notes, start=1)]
    return "\n".join(lines).rstrip() + "\n"


def _cells(section: Section, row: Row, varying: Sequence[str], notes: list[str]) -> list[str]:
    def mark(note: str) -> str:
        if note not in notes:
            notes.append(note)
        return f" [{notes.index(note) + 1}]"

    about = "".join(mark(note) for note in row.notes)
    void = row.group is not None and row.group.key["caveats"].startswith(VOID)
    cells = [format_epsilon(row.epsilon, row.system) + " (void: not private)" * void, label_of(row.system)]
    for metric, cell, beside in zip(section.layout.metrics, row.cells, row.beside, strict=True):
        missing = mark(cell.note) if cell.note else about if cell.mean is None else ""
        cells += [_value(cell, metric) + missing, *([beside] if section.beside else [])]
    if row.group is None:
        return cells + ["–"] * (3 + len(varying))
    spent = "–" if row.group.spent is None else f"{row.group.spent:.3f}"
    cells += [f"{len(row.group.points)}{about}", spent, *(_setting(row.group.key, name) for name in varying)]
    commits = (f"{commit[:8]}{'+dirty' * commit.endswith('+dirty')}" for commit in row.group.commits)
    return [*cells, ", ".join(commits) or "–"]


def _value(cell: Cell, metric: Metric) -> str:
    """Mean ± unbiased standard deviation; a dash where there is no value, no ± where there is one."""
    if cell.mean is None:
        return "–"
    text = f"{cell.mean * metric.scale:.{metric.digits}f}"
    return text if cell.std is None else f"{text} ± {cell.std * metric.scale:.{metric.digits}f}"


def csv_table(parts: Sequence[Section]) -> str:
    """All sections of one table, a line for each row: its setting, then mean, std, seeds and note of each metric."""
    beside = "difference" if parts[0].beside.startswith("−") else "paper"
    table = Table(["title", *KEY_FIELDS, "epsilon_spent", "num_seeds", "seeds", "commits", "runs", "notes"])
    columns = [
        f"{m.label} {what}" for m in parts[0].layout.metrics for what in ("mean", "std", "seeds", "note", beside)
    ]
    table.headings = [*table.headings, *columns]
    for section in parts:
        for row in section.rows:
            known = {**section.key, "kind": section.layout.kind, "system": row.system, "epsilon": row.epsilon}
            key: Mapping[str, Any] = known if row.group is None else row.group.key
            line = [section.layout.title, *(key.get(name) for name in KEY_FIELDS), *_runs(row.group)]
            line.append("; ".join(row.notes))
            for metric, cell, text in zip(section.layout.metrics, row.cells, row.beside, strict=True):
                line += [*_numbers(cell, metric.scale), cell.num, cell.note, "" if text == "–" else text]
            table.rows.append(line)
    return table.csv()


def csv_of_all(groups: Iterable[Group]) -> str:
    """Every metric of every setting, a line each."""
    table = Table([*KEY_FIELDS, "epsilon_spent", "metric", "mean", "std", "num_seeds", "commits", "runs", "note"])
    for group in groups:
        spent, _, _, commits, runs = _runs(group)
        for metric in group.metrics():
            cell = group.cell(metric)
            line = [*group.key.values(), spent, metric, *_numbers(cell), cell.num, commits, runs, cell.note]
            table.rows.append(line)
    return table.csv()


def _runs(group: Group | None) -> list[Any]:
    """ε spent, number of seeds, seeds, commits and paths of a setting's runs."""
    if group is None:
        return [None, 0, "", "", ""]
    seeds = " ".join(str(point.seed) for point in group.points)
    paths = " ".join(point.path for point in group.points)
    return [group.spent, len(group.points), seeds, " ".join(group.commits), paths]


def _numbers(cell: Cell, scale: float = 1.0) -> list[float | None]:
    return [None if value is None else round(value * scale, 6) for value in (cell.mean, cell.std)]


def _varies(section: Section, name: str) -> bool:
    """Whether a column is needed; long ones only where they alone tell two rows apart."""
    told: dict[Any, set[str]] = {}
    for row in section.rows:
        if row.group is not None:
            short = tuple(_setting(row.group.key, other) for other in _SETTING if other not in _LONG)
            place = (row.epsilon, row.system, short) if name in _LONG else None
            told.setdefault(place, set()).add(_setting(row.group.key, name))
    return any(len(texts - {"–"}) > 1 for texts in told.values())


def format_data(key: Mapping[str, Any]) -> str:
    """A data set's name and the first digits of its fingerprint."""
    print_ = str(key["fingerprint"])
    return f"{key['data']} ({print_ if print_.startswith('unknown') else print_[:8]})"


def _only(groups: Sequence[Group], name: str) -> str:
    told = {_setting(group.key, name) for group in groups} - {"–"}
    return told.pop() if len(told) == 1 else "–"


def _setting(key: Mapping[str, Any], name: str) -> str:
    if name == "data":
        return format_data(key)
    return f"{key[name]:.3g}" if name == "delta" and key[name] is not None else show(key[name] or None)
