"""Tables of the long frame of runs, and the lines that are drawn of one: a table is a groupby."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from commands.quality.frame import CONTEXT, HUMAN, SETTINGS, VOID, by_system, pool, read_csv
from commands.quality.measures import SHOWN, measure
from commands.run_folder.systems import system as system_of
from doppel.console.table import Table

#: The paper's numbers, in the columns of :mod:`commands.quality.frame`; ``table`` holds the names by which experiments
#: ask for them. Mireshghallah, Su, Hashimoto, Eisner, Shin: Privacy-Preserving Domain Adaptation of Semantic Parsers
#: (ACL 2023); ± is the unbiased standard deviation over three seeds.
PAPER = Path(__file__).with_name("paper.csv")
#: The experiment of its rows, and how its lines are called.
THE_PAPER, OF_PAPER = "the paper", " (paper)"
_OTHERS = [name for name in SETTINGS if name not in ("epsilon", "system")]
_HEADINGS = {
    "epsilon": "ε",
    "delta": "δ",
    "base_model": "model",
    "num_samples": "samples",
    "num_compared": "compared",
    "counting": "function types",
    "featurizer": "MAUVE features",
    "missing_function": "missing function",
    "spent": "ε spent",
}


def sections(frame: pd.DataFrame) -> Iterator[tuple[pd.DataFrame, str]]:
    """Yield rows that may share a table (same data, model and parser), and what they have in common."""
    for _, own in frame.groupby(CONTEXT, dropna=False, sort=False):
        ours = own[own["system"] != HUMAN]
        constant = [name for name in _OTHERS if ours[name].nunique() == 1 and ours[name].notna().all()]
        yield own, " · ".join(f"{_heading(name)}: {_text(name, ours[name].iloc[0])}" for name in constant)


def beside_paper(own: pd.DataFrame) -> pd.DataFrame:
    """Return the settings of one table, and the paper's numbers for it."""
    context = own[CONTEXT].iloc[0]
    paper = pool(read_csv(PAPER))
    paper = paper[[context["table"] in str(of).split() for of in paper["table"]]]
    if isinstance(context["missing_function"], str):
        paper = paper[[context["missing_function"].startswith(of) for of in paper["missing_function"]]]
    return by_system(pd.concat([own, paper.assign(**context)], ignore_index=True))


def table(pooled: pd.DataFrame, rows: Sequence[str] = (), metrics: Sequence[str] = ()) -> Table:
    """Return a table: a row for each setting, a column for each metric; a cell is mean ± deviation over seeds.

    Args:
        pooled: As :func:`~commands.quality.frame.pool` makes it.
        rows: Settings that name a row; by default ε, system and what differs, with ε spent and commits at the end.
        metrics: Columns; by default those of ``SHOWN`` that have a value in some row.

    Raises:
        ValueError: Two settings would share a row.
    """
    last = [] if rows else ["spent", "commit"]
    rows = rows or ["epsilon", "system", *_varying(pooled)]
    shown = pooled[pooled["metric"].isin(metrics or SHOWN)]
    metrics = metrics or [name for name in SHOWN if name in set(shown["metric"][shown["value"].notna()])]
    made = Table([*map(_heading, rows), *(measure(name).label for name in metrics), "seeds", *map(_heading, last)])
    for key, own in shown.groupby(list(dict.fromkeys([*rows, "experiment"])), dropna=False, sort=False):
        if own["metric"].duplicated().any():
            raise ValueError(f"several settings share the row {key}: name what tells them apart")
        seeds, cells = own["seeds"].max(), own.set_index("metric")
        line = [_text(name, own[name].iloc[0], own) for name in rows]
        line += [_cell(cells.loc[name], seeds) if name in cells.index else "–" for name in metrics]
        made.rows.append([*line, str(seeds), *(_text(name, own[name].dropna().max()) for name in last)])
    return made


def _varying(frame: pd.DataFrame) -> list[str]:
    """Settings in which runs differ, beside ε and system; how one is trained and sampled where it has two ways."""
    ours = frame[~frame["system"].eq(HUMAN) & ~frame["experiment"].eq(THE_PAPER)]
    alike = ours.groupby(["epsilon", "system"], dropna=False)
    differ = [name for name in _OTHERS if alike[name].nunique(dropna=False).gt(1).any()]
    return [name for name in _OTHERS if name in differ or (name != "setting" and ours[name].nunique() > 1)]


def lines(own: pd.DataFrame) -> pd.DataFrame:
    """Return the points of a figure: each value of a metric against ε, of the runs of one table and of the paper.

    What is void of ε is not drawn, for nobody knows where.

    Returns:
        The rows with a number at an ε, and two columns more: ``line``, the system and the settings in which runs
        differ, and ``ε`` as text, in the order of an axis.
    """
    is_void = own["caveats"].astype(str).str.startswith(VOID)
    own = own[own["epsilon"].notna() & own["value"].notna() & ~is_void]
    if own.empty:
        return own.assign(line=[], ε=[])
    paper = beside_paper(pool(own))
    is_beside = paper["experiment"].eq(THE_PAPER) & paper["system"].isin(own["system"]) & paper["epsilon"].notna()
    paper = paper[is_beside & paper["metric"].isin(own["metric"])]
    named = own[["system", *_varying(own)]].itertuples(index=False)
    names = [", ".join([label_of(row[0]), *(_short(str(v)) for v in row[1:] if not pd.isna(v))]) for row in named]
    both = pd.concat([own.assign(line=names), paper.assign(line=paper["system"].map(label_of) + OF_PAPER)])
    return both.sort_values("epsilon").assign(ε=lambda rows: rows["epsilon"].map(epsilon_text)).reset_index(drop=True)


def _short(setting: str) -> str:
    """A setting for people: what is JSON, as of a sampling, by a digest."""
    words, brace, content = setting.partition("{")
    return f"{words}sampling {hashlib.sha256(content.encode()).hexdigest()[:4]}" if brace else setting


def label_of(name: str) -> str:
    """Return the name of a system in tables."""
    return "human requests" if name == HUMAN else system_of(name).label


def epsilon_text(epsilon: float) -> str:
    """Format ε as tables and figures show it."""
    return "∞ (not private)" if epsilon == math.inf else f"{epsilon:g}"


def _heading(name: str) -> str:
    return _HEADINGS.get(name, name.replace("_", " "))


def _text(name: str, value: Any, own: pd.DataFrame | None = None) -> str:
    """A setting as people read it; of a row, ε says whether it is void and a system whose number it is."""
    first = None if own is None else own.iloc[0]
    if pd.isna(value) or (name == "epsilon" and first is not None and first["system"] == "none"):
        return "–"  # a parser that public turns alone taught
    if name == "system":
        is_paper = first is not None and first["experiment"] == THE_PAPER
        return f"{label_of(value)} (paper)" if is_paper else label_of(value)
    if name == "epsilon":
        is_void = first is not None and str(first["caveats"]).startswith(VOID)
        return epsilon_text(value) + " (void: not private)" * is_void
    return f"{value:.4g}" if isinstance(value, float) else _short(str(value))


def _cell(own: pd.Series, seeds: int) -> str:
    """Mean ± deviation, and of how many seeds where these are fewer than in the rest of the row."""
    text = measure(str(own.name)).show(own["value"], own["std"])
    return text if own["seeds"] == seeds or own["experiment"] == THE_PAPER else f"{text} ({own['seeds']} of {seeds})"
