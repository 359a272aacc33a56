"""The page's pictures: matplotlib's SVG, inline, in the colours of the page's style."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from markupsafe import Markup, escape
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, PercentFormatter

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

#: Colours of the style by the names of its variables, as its light look has them; lines of systems take the first four.
_SYSTEMS = {"s0": "#1d5a99", "s1": "#b4560a", "s2": "#2f7d4f", "s3": "#7a4a9c"}
_COLOURS = {**_SYSTEMS, "ink": "#1d1f22", "soft": "#565b63", "line": "#dcd8cf"}
_MARKERS = "osD^"
#: Id of the group of dots, each of which tells its name to who points at it.
_DOTS = "dots"
_LOOK: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # names are text
    "figure.figsize": (4.8, 3.1),
    "figure.constrained_layout.use": True,
    "font.size": 9,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _COLOURS["line"],
    "text.color": _COLOURS["ink"],
    "axes.labelcolor": _COLOURS["ink"],
    "axes.edgecolor": _COLOURS["soft"],
    "xtick.color": _COLOURS["soft"],
    "ytick.color": _COLOURS["soft"],
}


def scatter(points: Mapping[str, tuple[float, float]], title: str, told: str) -> Markup:
    """Shares of functions among human and among synthetic turns, both on log axes; never is at the edge.

    Args:
        points: Function → share among human requests, share among synthetic ones; one of them above 0.
        title: Of the picture.
        told: What it shows, for who does not see it.
    """
    with mpl.rc_context(_LOOK):
        figure, axes = _axes()
        least = min(0.1, *(share for pair in points.values() for share in pair if share > 0))
        decades = [10.0**power for power in range(math.ceil(math.log10(least)), 1)]
        axes.axline((least, least), (1, 1), color=_COLOURS["soft"], linestyle="--", linewidth=1)
        human, synthetic = zip(*points.values(), strict=True)
        dots = axes.scatter(human, synthetic, color=_COLOURS["s0"], alpha=0.55, linewidth=0, s=22)
        dots.set_gid(_DOTS)
        axes.set_xscale("symlog", linthresh=least, linscale=0.5)
        axes.set_yscale("symlog", linthresh=least, linscale=0.5)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_ticks([0, *decades], ["never", *(f"{100 * share:g} %" for share in decades)], minor=False)
            axis.set_minor_locator(NullLocator())
        axes.set(xlim=(-least / 4, 1.3), ylim=(-least / 4, 1.3))
        axes.set(xlabel="share of human requests", ylabel="share of synthetic requests")
        names = [
            f"{name}: {100 * human:.2g} % of human requests, {100 * synthetic:.2g} % of synthetic ones"
            for name, (human, synthetic) in points.items()
        ]
        return _inline(figure, "scatter", title, told, names)


def lengths(words: Mapping[str, Sequence[int]], title: str, told: str) -> Markup:
    """Distributions of the number of words: the first side, the human one, as an area, the others as lines.

    Args:
        words: Name of a side → words of each of its utterances.
        title: Of the picture.
        told: What it shows.
    """
    with mpl.rc_context(_LOOK):
        figure, axes = _axes()
        for place, (name, own) in enumerate(words.items()):
            is_human = place == 0
            shares = np.bincount(own) / len(own)
            axes.stairs(
                shares,
                np.arange(len(shares) + 1) - 0.5,
                fill=is_human,
                linewidth=0 if is_human else 1.8,
                color=_COLOURS["line"] if is_human else _colour(place - 1),
                label=name,
            )
        axes.set(xlabel="words in the utterance", ylabel="")
        axes.set_xlim(0, np.quantile([n for own in words.values() for n in own], 0.995) + 1)
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.legend()
        return _inline(figure, "lengths", title, told)


def curves(lines: pd.DataFrame, title: str, told: str) -> Markup:
    """Return a metric against ε as inline SVG; see :func:`draw_curves`, ``told`` for who does not see it."""
    with mpl.rc_context(_LOOK):
        figure, axes = _axes()
        draw_curves(axes, lines)
        return _inline(figure, "curves", title, told)


def draw_curves(axes: Axes, lines: pd.DataFrame) -> None:
    """Draw a metric against ε, with the deviation over seeds as whiskers; lines of the paper are dashed.

    Args:
        axes: Where to draw.
        lines: As :func:`commands.quality.tables.lines` makes them, of one metric.
    """
    from commands.quality.tables import OF_PAPER  # pandas, which the page of one run does not wait for

    levels, names = list(dict.fromkeys(lines["ε"])), sorted(set(lines["line"]))
    places = {name: place for place, name in enumerate(dict.fromkeys(name.removesuffix(OF_PAPER) for name in names))}
    for number, name in enumerate(names):
        own, place = lines[lines["line"] == name].groupby("ε", sort=False), places[name.removesuffix(OF_PAPER)]
        shift = 0.1 * (number / (len(names) - 1) - 0.5) if len(names) > 1 else 0.0
        axes.errorbar(
            [levels.index(level) + shift for level in own["value"].mean().index],
            own["value"].mean(),
            own["std"].max().fillna(own["value"].std()).fillna(0),  # the paper says its own
            color=_colour(place),
            marker=_MARKERS[place % len(_MARKERS)],
            linestyle="--" if name.endswith(OF_PAPER) else "-",
            linewidth=1.8,
            label=name,
        )
    axes.set_xticks(range(len(levels)), levels)
    axes.set_xlabel("ε")
    axes.set(ylabel="", ylim=(0, 1.08 * axes.get_ylim()[1]))
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.24), ncols=2)  # below, where it hides no line


def _axes() -> tuple[Figure, Axes]:
    figure = Figure()
    return figure, figure.subplots()


def _colour(place: int) -> str:
    return list(_SYSTEMS.values())[place % len(_SYSTEMS)]


def _inline(figure: Figure, kind: str, title: str, told: str, dots: Sequence[str] = ()) -> Markup:
    """A figure as an element of the page; ``dots`` are what the dots of a scatter say of themselves.

    Names in it are escaped by matplotlib, as text of XML. Without date, metadata and names of groups, equal runs have
    equal pictures; colours become variables of the style, so that light, dark and print each have theirs, and fonts are
    the page's.
    """
    written = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": title}):  # so that no two pictures of a page share an id
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(written, format="svg", metadata=nothing, transparent=True)
    text = written.getvalue()
    box, inner = (
        re.search(r'viewBox="([^"]*)"', text),
        text[text.index("</defs>") + len("</defs>") : text.rindex("</svg>")],
    )
    assert box is not None
    inner = re.sub(r' id="[^"]*_\d+"| font-family: [^;]*;', "", inner)
    before, mark, after = inner.partition(f'<g id="{_DOTS}">')
    own = iter(dots)
    after = re.sub(r"<use [^>]*/>", lambda use: _titled(use[0], next(own, "")), after, count=len(dots))
    inner = f"{before}{mark and '<g>'}{after}"
    for name, colour in _COLOURS.items():
        inner = inner.replace(colour, f"var(--{name})")
    head = Markup('<svg class="chart {}" viewBox="{}" role="img" aria-label="{}. {}">')
    return head.format(kind, box[1], title, told) + Markup(inner) + Markup("</svg>")


def _titled(element: str, title: str) -> str:
    return f"<g><title>{escape(title)}</title>{element}</g>"
