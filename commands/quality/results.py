"""Gather the report.json files below a folder into tables and plots beside the paper's numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from commands.quality.plot import plot
from commands.quality.pool import Cell, Group, pool
from commands.quality.runs import KEY_FIELDS, SECTION_FIELDS, VOID, Runs, read_runs
from commands.quality.sections import (
    Metric,
    Row,
    Section,
    format_data,
    format_epsilon,
    label_of,
    layouts,
    other_sections,
    paper_sections,
    switch_sections,
)
from commands.quality.table import Table, show
from doppel.errors import UserError
from doppel.files import write_text

_HEAD = """# Results

Written by `python cli.py results`; the columns "paper" hold the paper's own numbers for its data and models.

- A cell is the mean ± the unbiased standard deviation over seeds; one seed has no ±.
- Runs share a cell only if they agree in ε, δ, unit, accountant, data (fingerprint), base model, number of samples,
  parser, featurizer, experiment, settings of training and of sampling. Those that do not have rows or tables of their
  own. Commits may differ and are listed.
- ε is what one run promises. Whoever releases the samples of several runs on the same data spends all of them together.
- Rows with ε = ∞ are not private.
"""

#: Settings of a row: columns where they differ, else said above the table.
_SETTING = ("delta", "unit", "accountant", "experiment", "num_compared", "training")
_LONG = ("num_compared", "training")
_SHARED = [name for name in SECTION_FIELDS if name != "fingerprint"]  # which stands beside the name of the data
_HEADINGS = {
    "delta": "δ",
    "base_model": "model",
    "num_samples": "samples",
    "num_compared": "compared",
    "featurizer": "MAUVE features",
    "counting": "function types",
    "missing_function": "missing function",
}


def results(runs_dir: Path, *, out: Path | None = None) -> None:
    """Gather the reports below a folder into tables and plots beside the paper's numbers.

    Args:
        runs_dir: Folder below which the runs lie.
        out: Folder for results.md, the CSV files and plots (default: RUNS_DIR/results).

    Raises:
        UserError: There is no run below the folder, or the output cannot be written.
    """
    runs = read_runs(runs_dir)
    if not runs.points and not runs.problems:
        raise UserError(f"{runs_dir} holds no run: a run is a folder with report.json, ledger.jsonl or .done")
    out = out or runs_dir / "results"
    files = write_results(runs, out)
    groups = {point.path for point in runs.points}
    print(f"{len(groups)} runs with numbers, {len({p.path for p in runs.problems})} with something left out")
    for problem in runs.problems:
        print(f"left out: {problem}")
    print(f"{len(files)} files in {out}; read {out / 'results.md'}")


def write_results(runs: Runs, out: Path, plots: bool = True) -> list[Path]:
    """Write results.md, one CSV a table, all.csv and the plots into a folder; returns the files."""
    groups = pool(runs.points)
    files: list[Path] = []
    text, without = [_HEAD], []
    tables: dict[str, list[Section]] = {}
    for layout in layouts():
        parts = paper_sections(layout, groups, runs.problems)
        tables.setdefault(f"table_{layout.id}", []).extend(parts)
        if not parts:
            without.append(f"Table {layout.id}, {layout.title}: no run")
            continue
        text.append(f"## Table {layout.id}: {layout.title}\n")
        for section in parts:
            drawn, notes = plot(section, out / "plots") if plots and layout.id == "1" else ([], [])
            files += drawn
            section.notes += notes
            text.append(markdown(section))
            text += [f"![{layout.title}, against ε](plots/{file.name})\n" for file in drawn if file.suffix == ".png"]
    tables["switches"] = switch_sections(groups)
    shown = {id(row.group) for parts in tables.values() for section in parts for row in section.rows}
    tables["others"] = other_sections([group for group in groups if id(group) not in shown])
    for name, title in (
        ("switches", "Switches beyond the paper, each against the two-stage run at the same ε"),
        ("others", "Runs outside the paper's tables"),
    ):
        text += [f"## {title}\n", *map(markdown, tables[name])] if tables[name] else []
    for title, lines in (
        ("Tables of the paper without a run", without),
        ("Left out", runs.problems),
        ("Remarks", runs.remarks),
    ):
        text += [f"## {title}\n\n" + "\n".join(f"- {line}" for line in lines) + "\n"] if lines else []
    content = {f"{name}.csv": csv_table(parts) for name, parts in tables.items() if parts}
    content |= {"all.csv": csv_of_all(groups), "results.md": "\n".join(text)}
    for name, written in content.items():
        write_text(out / name, written)
    return files + [out / name for name in content]


def markdown(section: Section) -> str:
    """One table with its setting above and its notes below."""
    groups = [row.group for row in section.rows if row.group is not None]
    varying = [name for name in _SETTING if _varies(section, name)]
    constant = {name: _setting(section.key, name) for name in _SHARED}
    constant |= {name: _only(groups, name) for name in _SETTING if name not in (*varying, "training")}
    headings = ["ε", "system"]
    for metric in section.layout.metrics:
        headings += [metric.label, *([section.beside] if section.beside else [])]
    notes: list[str] = []
    table = Table([*headings, "seeds", "ε spent", *(_HEADINGS.get(name, name) for name in varying), "commit"])
    table.rows += [_cells(section, row, varying, notes) for row in section.rows]
    told = [f"{_HEADINGS.get(name, name)}: {text}" for name, text in constant.items() if text != "–"]
    lines = [f"**{' · '.join(told)}**", ""]
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


def _only(groups: Sequence[Group], name: str) -> str:
    told = {_setting(group.key, name) for group in groups} - {"–"}
    return told.pop() if len(told) == 1 else "–"


def _setting(key: Mapping[str, Any], name: str) -> str:
    if name == "data":
        return format_data(key)
    return f"{key[name]:.3g}" if name == "delta" and key[name] is not None else show(key[name] or None)
