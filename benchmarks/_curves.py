"""Learning curves: a metric against the number of rows, a line for each way of choosing them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from doppel.files import whole_file

#: Okabe and Ito's colours; markers differ too, for print and for colour-blind readers.
_STYLE = {
    "uniform": ("#E69F00", "s"),
    "uat": ("#0072B2", "o"),
    "cmaxent": ("#009E73", "^"),
    "hybrid": ("#CC79A7", "P"),
}


def draw_curves(
    path: Path,
    panels: Mapping[str, Mapping[str, Mapping[int, Sequence[float]]]],
    lines: Mapping[str, Sequence[float]] | None = None,
    label: str = "rows",
) -> None:
    """Draw a panel for each metric.

    Args:
        path: Figure to write (.svg, .png).
        panels: Metric → way of choosing → number of rows → values of the seeds, shares in [0, 1]. A band shows their
            unbiased standard deviation.
        lines: Metric → values without any row, as a dashed line.
        label: What the numbers count.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.4 * len(panels), 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (metric, methods) in zip(axes, panels.items(), strict=True):
        for method, found in methods.items():
            sizes = sorted(found)
            colour, marker = _STYLE.get(method, ("#444444", "*"))
            means = [100 * statistics.mean(found[k]) for k in sizes]
            spread = [100 * statistics.stdev(found[k]) if len(found[k]) > 1 else 0.0 for k in sizes]
            axis.plot(sizes, means, color=colour, marker=marker, label=method, linewidth=1.8)
            bounds = [[mean + sign * s for mean, s in zip(means, spread, strict=True)] for sign in (-1, 1)]
            axis.fill_between(sizes, *bounds, color=colour, alpha=0.15, linewidth=0)
        if lines and metric in lines:
            axis.axhline(100 * statistics.mean(lines[metric]), color="#444444", linestyle="--", label="none")
        axis.set_title(f"{metric}, %", loc="left", fontsize=10)
        axis.set_xlabel(label)
        axis.grid(alpha=0.25)
    axes[0].legend(frameon=False, fontsize=8.5)
    with whole_file(path) as file:
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(file, format=path.suffix[1:], dpi=160, metadata=metadata)


__all__ = ["draw_curves"]
