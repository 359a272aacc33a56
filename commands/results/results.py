"""Gather the report.json files below a folder into tables and plots beside the paper's numbers."""

from __future__ import annotations

from pathlib import Path

from commands.results.paper_tables import layouts
from commands.results.plot import plot
from commands.results.pool import pool
from commands.results.render import csv_of_all, csv_table, markdown
from commands.results.runs import Runs, read_runs
from commands.results.sections import Section, other_sections, paper_sections, switch_sections
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
    """Write results.md, one CSV a table, all.csv and the plots.

    Args:
        runs: What was found.
        out: Folder; made if need be.
        plots: Whether to draw too.

    Returns:
        The files written.
    """
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
