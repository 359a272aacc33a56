"""Several runs beside one another: what privacy costs, with seeds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from commands.page import charts
from commands.page.html import render
from commands.quality.frame import HUMAN, VOID, counted, pool, read_runs
from commands.quality.measures import SHOWN, measure
from commands.quality.tables import epsilon_text, label_of, lines_of, sections
from commands.runs.run_record import RunRecord
from doppel.errors import UserError
from doppel.files import write_text


def write_comparison(records: Sequence[RunRecord], out: Path) -> Path:
    """Write the comparison of several runs.

    What it shows are the runs' own metrics of samples, pooled over seeds as ``python cli.py results`` pools them, and
    what they spent: nothing that a single page would not show.

    Returns:
        The file.

    Raises:
        UserError: No run has a number.
    """
    folders = [record.folder.resolve() for record in records]  # some may be named by a relative path
    frame, problems = read_runs(folders)
    frame, notes = counted(frame)
    if frame.empty:
        raise UserError(f"none of the {len(records)} runs has a number: {'; '.join(problems) or 'none has metrics'}")
    shown = frame[frame["metric"].isin(SHOWN) & frame["value"].notna()]
    content = render(
        "comparison.html",
        title=f"Privacy against quality: {', '.join(sorted(set(frame['experiment'])))}",
        num_runs=len(records),
        sections=[_section(own, told) for own, told in sections(shown)],
        problems=[*problems, *notes],
        runs=[os.path.relpath(folder, os.path.commonpath(folders)) for folder in folders],
        command=f"python cli.py page {' '.join(map(str, folders))}",
    )
    write_text(out, content)
    return out


def _section(frame: pd.DataFrame, told: str) -> dict[str, Any]:
    """One table with its pictures; what is void of ε stands at no ε, and so in no picture."""
    names = [name for name in SHOWN if name in set(frame["metric"])]
    rows = pool(frame[frame["system"] != HUMAN])
    drawn = frame[frame["epsilon"].notna() & ~_is_void(frame)].sort_values("epsilon")
    drawn = drawn.assign(line=lines_of(drawn), ε=drawn["epsilon"].map(epsilon_text))
    settings = rows.drop(columns=["metric", "value", "std", "seeds", "spent", "commit"]).columns
    return {
        "title": frame["data"].iloc[0],
        "setting": told,
        "figures": [_figure(own, name) for name in names if not (own := drawn[drawn["metric"] == name]).empty],
        "headings": [measure(name).label for name in names],
        "rows": [_row(own, names) for _, own in rows.groupby(list(settings), dropna=False, sort=False)],
    }


def _figure(drawn: pd.DataFrame, name: str) -> dict[str, Any]:
    of = measure(name)
    means = drawn.groupby(["line", "ε"], sort=False)["value"].mean()
    told = "; ".join(f"{line}: {value:.3g} at ε = {epsilon}" for (line, epsilon), value in means.items())
    picture = charts.curves(drawn, f"{of.label} against ε", told)
    has_deviation = drawn.duplicated(["line", "ε"]).any()
    return {"picture": picture, "label": of.label, "better": of.better, "has_deviation": has_deviation}


def _row(own: pd.DataFrame, names: Sequence[str]) -> dict[str, Any]:
    first, cells = own.iloc[0], own.set_index("metric")
    return {
        "system": label_of(first["system"]),
        "epsilon": epsilon_text(first["epsilon"]),
        "is_void": bool(_is_void(own).iloc[0]),
        "spent": "–" if own["spent"].isna().all() else f"{own['spent'].max():.3f}",
        "seeds": own["seeds"].max(),
        "cells": [
            measure(name).show(*cells.loc[name, ["value", "std"]]) if name in cells.index else "–" for name in names
        ],
        "note": first["caveats"] if isinstance(first["caveats"], str) else "",
    }


def _is_void(frame: pd.DataFrame) -> pd.Series:
    return frame["caveats"].astype(str).str.startswith(VOID)
