"""Plots of metrics against ε, one figure for each printed table."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commands.quality.pool import Cell
from commands.quality.runs import VOID
from commands.quality.sections import Row, Section, format_data, format_epsilon, label_of
from doppel.files import whole_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Okabe and Ito's palette, which colour-blind readers can tell apart; markers differ too.
_STYLE = {
    "one_stage": ("#E69F00", "s"),
    "domain": ("#56B4E9", "D"),
    "two_stage": ("#0072B2", "o"),
    "shuffled": ("#D55E00", "v"),
    "constrained": ("#CC79A7", "P"),
    "unconstrained": ("#CC79A7", "p"),
    "upweighted": ("#000000", "X"),
    "iterative": ("#999999", "<"),
}
_FALLBACK = ("#444444", "*")
_DASHES = ("-", "-.", ":")
#: Settings that split a system into several lines.
_APART = ("experiment", "delta", "unit", "accountant", "caveats", "num_compared")

#: (system, label) → ε → row
Lines = dict[tuple[str, str], dict[float, Row]]


def plot(section: Section, folder: Path) -> tuple[list[Path], list[str]]:
    """Draw every metric of a table against ε.

    One line a system, its band the standard deviation over seeds; the paper's means are dashed. ε = ∞ stands apart at
    the right. Systems are split by every setting that is not pooled.

    Returns:
        Files written (none if there is nothing to draw), and what could not be drawn.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines, notes = _lines(section)
    if not lines:
        return [], notes
    epsilons = {e for line in lines.values() for e in line} | {e for e, _ in section.layout.values if e is not None}
    finite = sorted(epsilons - {math.inf})
    place = {epsilon: float(index) for index, epsilon in enumerate(finite)} | {math.inf: len(finite) + 0.4}
    metrics = section.layout.metrics
    columns = 2 if len(metrics) > 1 else 1
    rows = math.ceil(len(metrics) / columns)
    figure = Figure(figsize=(4.6 * columns, 3.1 * rows + 0.9), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    handles: dict[str, Any] = {}
    for index, (metric, axis) in enumerate(zip(metrics, axes, strict=False)):
        drawn: list[str] = []
        for (system, label), line in lines.items():
            _draw(axis, place, [(e, row.cells[index]) for e, row in line.items()], metric.scale, label, system, drawn)
        for system in dict.fromkeys(drawn):
            _draw_paper(axis, place, section, system, index)
        axis.set_title(metric.label, loc="left", fontsize=10)
        _label_epsilons(axis, place, finite, math.inf in epsilons)
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    for axis in axes[len(metrics) :]:
        axis.set_visible(False)
    where: dict[str, Any] = {"loc": "outside lower center", "ncols": 3, "frameon": False, "fontsize": 8.5}
    figure.legend(list(handles.values()), list(handles), **where)
    key, paper = section.key, section.layout.title.rsplit(", ", 1)[-1]
    title = f"{format_data(key)}, model {key['base_model']}, {key['num_samples']} samples; dashed: the paper, {paper}"
    figure.suptitle(title, fontsize=10)
    files = [folder / f"{_stem(section)}.{suffix}" for suffix in ("png", "svg")]
    for path in files:
        # without a date, so that the same runs give the same file
        metadata = {"Date": None} if path.suffix == ".svg" else None
        with whole_file(path) as file:
            figure.savefig(file, format=path.suffix[1:], dpi=160, metadata=metadata)
    return files, notes


def _lines(section: Section) -> tuple[Lines, list[str]]:
    """The lines to draw, and what cannot be; settings that ε does not tell apart get lines of their own."""
    by_line: dict[tuple[str, ...], dict[float, list[Row]]] = {}
    shown = [row for row in section.rows if row.group and any(cell.mean is not None for cell in row.cells)]
    void = [row for row in shown if row.group and row.group.key["caveats"].startswith(VOID)]
    notes = [f"not drawn: {label_of(row.system)} at ε = {format_epsilon(row.epsilon)}, which is {VOID}" for row in void]
    shown = [row for row in shown if row not in void]
    # ε = ∞ has neither δ nor unit, comes last and stands with every line of its experiment
    for row in sorted(shown, key=lambda row: row.epsilon == math.inf):
        assert row.group is not None and row.epsilon is not None
        name = (row.system, *(str(row.group.key[field]) for field in _APART))
        names = [name]
        if row.epsilon == math.inf:
            names = [other for other in by_line if other[:2] == name[:2]] or names
        for name in names:
            by_line.setdefault(name, {}).setdefault(row.epsilon, []).append(row)
    lines = {}
    for name, line in by_line.items():
        same = [other for other in by_line if other[0] == name[0]]
        differing = [f"{f} {name[i]}" for i, f in enumerate(_APART, start=1) if len({other[i] for other in same}) > 1]
        label = label_of(name[0]) + (f" ({', '.join(differing)})" if differing else "")
        kept = {epsilon: rows[0] for epsilon, rows in line.items() if len(rows) == 1}
        for epsilon in line.keys() - kept.keys():
            told = format_epsilon(epsilon)
            notes.append(f"not drawn: {label} at ε = {told}, which has {len(line[epsilon])} rows of unlike training")
        if kept:
            lines[name[0], label] = kept
    return lines, notes


def _draw(
    axis: Axes,
    place: dict[float, float],
    cells: list[tuple[float, Cell]],
    scale: float,
    label: str,
    system: str,
    drawn: list[str],
) -> None:
    """Draw a line of ours; ``drawn`` are the systems of the lines before it."""
    style = _style(system, markersize=6)
    if variant := drawn.count(system):  # another setting of the same system
        style |= {"markerfacecolor": "white", "markeredgewidth": 1.6, "linestyle": _DASHES[variant % len(_DASHES)]}
    drawn.append(system)
    points = sorted((e, cell.mean * scale, (cell.std or 0) * scale) for e, cell in cells if cell.mean is not None)
    finite = [(place[e], mean, mean - std, mean + std) for e, mean, std in points if e < math.inf]
    if finite:
        xs, means, low, high = zip(*finite, strict=True)
        axis.plot(xs, means, linewidth=1.8, label=label, **style)
        axis.fill_between(xs, low, high, color=style["color"], alpha=0.18, linewidth=0)
    for epsilon, mean, std in points:
        if epsilon == math.inf or len(finite) == 1:  # elsewhere the band says it
            own = None if finite else label
            axis.errorbar(place[epsilon], mean, std, capsize=3, linewidth=1.2, label=own, **style)


def _draw_paper(axis: Axes, place: dict[float, float], section: Section, system: str, index: int) -> None:
    style = _style(system, markersize=4.5, fillstyle="none", linewidth=1.1, linestyle="--", alpha=0.8)
    own = [(epsilon, cells[index]) for (epsilon, name), cells in section.layout.values.items() if name == system]
    found = [(epsilon, re.match(r"[\d.]+", cell)) for epsilon, cell in own if epsilon is not None]
    values = sorted((epsilon, float(number.group())) for epsilon, number in found if number)
    label = f"paper: {label_of(system)}"
    finite = [(place[epsilon], value) for epsilon, value in values if epsilon < math.inf]
    if finite:
        axis.plot(*zip(*finite, strict=True), label=label, **style)
    for _, value in values[len(finite) :]:
        axis.plot(place[math.inf], value, label=None if finite else label, **style)


def _label_epsilons(axis: Axes, place: dict[float, float], finite: list[float], has_infinity: bool) -> None:
    ticks = finite + [math.inf] * has_infinity
    axis.set_xticks([place[e] for e in ticks], [f"{e:g}" if e < math.inf else "∞\nnot private" for e in ticks])
    axis.set_xlabel("ε")
    axis.set_ylim(bottom=0)
    axis.grid(axis="y", color="#dddddd", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    if has_infinity and finite:
        axis.axvline(len(finite) - 0.3, color="#bbbbbb", linewidth=0.8, linestyle=":")
        axis.set_xlim(-0.35, place[math.inf] + 0.35)


def _style(system: str, **more: Any) -> dict[str, Any]:
    colour, marker = _STYLE.get(system, _FALLBACK)
    return {"color": colour, "marker": marker, **more}


def _stem(section: Section) -> str:
    key = section.key
    parts = ("table", section.layout.id.lower(), key["data"], str(key["fingerprint"])[:8], key["base_model"])
    parts += (key["num_samples"], "parser", str(key["parser"])[-12:], key["featurizer"])
    return re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(map(str, parts))).strip("-")
