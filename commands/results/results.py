"""Gather the report.json files below a folder into tables and plots beside the paper's numbers."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from commands.results.paper import tables
from commands.results.plot import plot
from commands.results.pool import Group, pool
from commands.results.render import csv_of_all, csv_table, markdown
from commands.results.runs import Problem, Runs, read_runs
from commands.results.switches import switch_sections
from commands.results.tables import SECTION_FIELDS, Row, Section, order_of, sections
from doppel.errors import UserError

_HEAD = """# Results

Written by `python cli.py results`; the columns "paper" hold the paper's own numbers for its data and models.

- A cell is the mean ± the unbiased standard deviation over seeds; one seed has no ±.
- Runs share a cell only if they agree in ε, δ, unit, accountant, data (fingerprint), base model, number of samples,
  parser, featurizer, experiment, settings of training and of sampling. Those that do not have rows or tables of their
  own. Commits may differ and are listed.
- ε is what one run promises. Whoever releases the samples of several runs on the same data spends all of them together.
- Rows with ε = ∞ are not private.
"""
_OTHER = "runs outside the paper's tables"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``python cli.py results``."""
    parser.add_argument("runs_dir", type=Path, help="folder below which the runs lie")
    parser.add_argument("--out", type=Path, help="folder for results.md, the CSV files and plots (RUNS_DIR/results)")


def run(args: argparse.Namespace) -> None:
    """Write the tables and say what was found.

    Raises:
        UserError: There is no run below the folder, or the output cannot be written.
    """
    runs = read_runs(args.runs_dir)
    if not runs.points and not runs.problems:
        raise UserError(f"{args.runs_dir} holds no run: a run is a folder with report.json, ledger.jsonl or .done")
    out = args.out or args.runs_dir / "results"
    try:
        files = write_results(runs, out)
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror}); give another --out") from error
    groups = {point.path for point in runs.points}
    print(f"{len(groups)} runs with numbers, {len({p.path for p in runs.problems})} with something left out")
    for problem in runs.problems:
        print(f"left out: {describe(problem)}")
    print(f"{len(files)} files in {out}; read {out / 'results.md'}")


def write_results(runs: Runs, out: Path, plots: bool = True) -> list[Path]:
    """Write results.md, one CSV a table, all.csv and the plots.

    Args:
        runs: What was found.
        out: Folder; made if need be.
        plots: Whether to draw too.

    Returns:
        The files written.
    """
    groups = pool(runs.points)
    out.mkdir(parents=True, exist_ok=True)
    files, text = [], [_HEAD]
    without: list[str] = []
    by_id: dict[str, list[Section]] = {}
    for table in tables():
        parts = sections(table, groups, runs.problems)
        by_id.setdefault(table.id, []).extend(parts)
        if not parts:
            without.append(f"- Table {table.id}, {table.title}: no run")
            continue
        text.append(f"## Table {table.id}: {table.title}\n")
        for section in parts:
            drawn, notes = plot(section, out / "plots") if plots and table.id == "1" else ([], [])
            files += drawn
            section.notes += notes
            text.append(markdown(section))
            text += [f"![{table.title}, against ε](plots/{file.name})\n" for file in drawn if file.suffix == ".png"]
    switches = switch_sections(groups)
    if switches:
        text.append("## Switches beyond the paper, each against the two-stage run at the same ε\n")
        text += [markdown(section, beside="− 2-stage") for section in switches]
    shown = {id(row.group) for parts in (*by_id.values(), switches) for section in parts for row in section.rows}
    others = _others([group for group in groups if id(group) not in shown])
    if others:
        text.append(f"## {_OTHER.capitalize()}\n")
        text += [markdown(section, beside="") for section in others]
    if without:
        text.append("## Tables of the paper without a run\n\n" + "\n".join(without) + "\n")
    if runs.problems:
        text.append("## Left out\n\n" + "\n".join(f"- {describe(problem)}" for problem in runs.problems) + "\n")
    if runs.remarks:
        text.append("## Remarks\n\n" + "\n".join(f"- {remark}" for remark in runs.remarks) + "\n")
    named = {f"table_{name}": parts for name, parts in by_id.items()} | {"switches": switches, "others": others}
    for name, parts in named.items():
        if parts:
            files.append(_write(out / f"{name}.csv", csv_table(parts, "difference" if name == "switches" else "paper")))
    files.append(_write(out / "all.csv", csv_of_all(groups)))
    files.append(_write(out / "results.md", "\n".join(text)))
    return files


def describe(problem: Problem) -> str:
    """One line on what was left out and why."""
    return f"{problem.path}{f', {problem.system}' if problem.system else ''}: {problem.text}"


def _others(groups: Sequence[Group]) -> list[Section]:
    """Tables in the same layout for what the paper has no place for: other data, sweeps."""
    generation = replace(tables()[0], id="other", title=_OTHER, note="", values={})
    adaptation = next(table for table in tables() if table.kind == "adaptation")
    adaptation = replace(adaptation, id="other", title=_OTHER, note="", values={})
    parts: dict[tuple[object, ...], Section] = {}
    for group in groups:
        layout = generation if group.key["kind"] == "generation" else adaptation
        key = {name: group.key[name] for name in SECTION_FIELDS}
        section = parts.setdefault((layout.kind, *key.values()), Section(layout, key, [], []))
        cells = [group.cell(metric.key.replace("{missing}", str(key["missing_function"]))) for metric in layout.metrics]
        dashes = ["–"] * len(cells)
        section.rows.append(Row(group.key["epsilon"], group.key["system"], group, cells, dashes, list(group.notes)))
    for section in parts.values():
        section.rows.sort(key=order_of)
    return list(parts.values())


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path
