"""Several runs beside one another: what privacy costs, with seeds."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from commands.page import charts
from commands.page.html import render
from commands.pipeline.run_record import RunRecord
from commands.quality.pool import Cell, Group, pool
from commands.quality.runs import SECTION_FIELDS, VOID, Runs, read_runs
from commands.quality.sections import format_data, format_epsilon, label_of
from commands.quality.table import show
from doppel.errors import UserError
from doppel.files import write_text

#: Metric, or those of which the first that some run has is shown; its name; what is better.
_METRICS = (
    (("mauve",), "MAUVE", "Higher is better."),
    (("word_overlap",), "word overlap", "Higher is better."),
    (("parsed_function_overlap", "function_overlap"), "function overlap", "Higher is better."),
    (("parsed_chi_square", "chi_square"), "χ² of functions", "Lower is better."),
    (("parsed_own_tree_match",), "own-tree match", "Higher is better."),
    (("exact_match",), "exact match of the parser", "Higher is better."),
)


def write_comparison(records: Sequence[RunRecord], out: Path) -> Path:
    """Write the comparison of several runs.

    What it shows are the runs' own metrics of samples, pooled over seeds as ``python cli.py results`` pools them, and
    what they spent: nothing that a single page would not show.

    Returns:
        The file.

    Raises:
        UserError: No run has a number.
    """
    found = Runs()
    folders = [record.folder.resolve() for record in records]
    root = Path(os.path.commonpath([folder.parent for folder in folders]))
    for folder in folders:
        own, name = read_runs(folder), os.path.relpath(folder, root)
        found.points += [replace(point, path=name) for point in own.points if point.path == "."]
        found.problems += [replace(problem, path=name) for problem in own.problems if problem.path == "."]
    if not found.points:
        why = "; ".join(map(str, found.problems)) or "give run folders with a report.json"
        raise UserError(f"none of the {len(records)} runs has a number: {why}")
    names = sorted({str(point.key["experiment"]) for point in found.points})
    content = render(
        "comparison.html",
        title=f"Privacy against quality: {', '.join(names)}",
        num_runs=len(records),
        sections=[_section(key, groups) for key, groups in _by_section(pool(found.points))],
        problems=[str(problem) for problem in found.problems],
        runs=[os.path.relpath(folder, root) for folder in folders],
        command=f"python cli.py page {' '.join(str(record.folder) for record in records)}",
    )
    write_text(out, content)
    return out


def _by_section(groups: Sequence[Group]) -> list[tuple[Mapping[str, Any], list[Group]]]:
    """Groups on the same data with the same model, parser and number of samples."""
    parts: dict[tuple[str, ...], list[Group]] = {}
    for group in groups:
        parts.setdefault(tuple(str(group.key[name]) for name in ("kind", *SECTION_FIELDS)), []).append(group)
    return [(own[0].key, own) for _, own in sorted(parts.items())]


def _section(key: Mapping[str, Any], groups: Sequence[Group]) -> dict[str, Any]:
    """One table with its pictures."""
    groups = sorted(groups, key=lambda group: (-_epsilon(group), str(group.key["system"])))
    lines_of: dict[tuple[str, str], list[Group]] = {}
    for group in groups:
        lines_of.setdefault((str(group.key["system"]), str(group.key["experiment"])), []).append(group)
    several = len({experiment for _, experiment in lines_of}) > 1
    labels = {own: label_of(own[0]) + (f", {own[1]}" if several else "") for own in lines_of}
    ticks = {epsilon: format_epsilon(epsilon) for epsilon in sorted({_epsilon(group) for group in groups})}
    chosen = [(name, label, better) for names, label, better in _METRICS if (name := _first(names, groups)) is not None]
    figures = []
    for name, label, better in chosen:
        lines = [
            charts.Curve(
                labels[own],
                [
                    (_epsilon(group), cell.mean, cell.std)
                    for group in members
                    if (cell := group.cell(name)).mean is not None
                ],
            )
            for own, members in lines_of.items()
        ]
        told = "; ".join(
            f"{line.label}: " + ", ".join(f"{y:.3g} at ε = {ticks[x]}" for x, y, _ in sorted(line.points))
            for line in lines
            if line.points
        )
        has_deviation = any(deviation is not None for line in lines for _, _, deviation in line.points)
        picture = charts.curves(lines, ticks, f"{label} against ε", told, "ε")
        figures.append({"picture": picture, "label": label, "better": better, "has_deviation": has_deviation})
    fields = {"model": key["base_model"], "samples": key["num_samples"], "parser": key["parser"]}
    setting = [f"{name} {show(value)}" for name, value in fields.items() if value not in (None, "none")]
    return {
        "title": format_data(key),
        "setting": " · ".join(setting),
        "systems": list(labels.values()),
        "figures": figures,
        "headings": [label for _, label, _ in chosen],
        "rows": [_row(group, [name for name, _, _ in chosen]) for group in groups],
    }


def _row(group: Group, names: Sequence[str]) -> dict[str, Any]:
    caveats = str(group.key["caveats"] or "")
    is_void = caveats.startswith(VOID)
    return {
        "system": label_of(str(group.key["system"])),
        "epsilon": format_epsilon(group.key["epsilon"], str(group.key["system"])),
        "is_void": is_void,
        "spent": "–" if group.spent is None or is_void else f"{group.spent:.3f}",
        "seeds": len(group.points),
        "cells": [_cell(group.cell(name)) for name in names],
        "notes": [note for note in (caveats, *group.notes) if note],
    }


def _cell(cell: Cell) -> str:
    if cell.mean is None:
        return "–"
    return f"{cell.mean:.3f}" + ("" if cell.std is None else f" ± {cell.std:.3f}")


def _first(names: Sequence[str], groups: Sequence[Group]) -> str | None:
    """The first metric that some group has."""
    return next((name for name in names if any(group.cell(name).mean is not None for group in groups)), None)


def _epsilon(group: Group) -> float:
    """Its target ε; infinite without privacy, and where nobody vouches for it."""
    is_void = str(group.key["caveats"] or "").startswith(VOID)
    return math.inf if group.key["epsilon"] is None or is_void else float(group.key["epsilon"])
