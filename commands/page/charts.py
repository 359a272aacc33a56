"""Pictures as inline SVG: colours are classes of the page's style, so that light, dark and print each have theirs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

_WIDTH, _HEIGHT = 560.0, 340.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 56.0, 18.0, 14.0, 48.0


@dataclass(frozen=True)
class Curve:
    """A line of a chart: places and values, each with a deviation or None.

    Attributes:
        label: What it is.
        points: x, y and the deviation of y.
    """

    label: str
    points: Sequence[tuple[float, float, float | None]]


def interval(low: float, value: float, high: float, top: float, kind: str) -> Markup:
    """A share as a bar, and its interval as a line over its end; ``top`` is the share at the right edge."""
    x = [160 * min(1.0, v / top) if top else 0.0 for v in (low, value, high)]
    return Markup(
        '<svg class="bar {kind}" viewBox="0 0 162 14" aria-hidden="true" focusable="false">'
        '<rect class="track" x="0" y="3" width="162" height="8" rx="2"/>'
        '<rect class="fill" x="0" y="3" width="{v:.1f}" height="8" rx="2"/>'
        '<path class="whisker" d="M{l:.1f} 7H{h:.1f}M{l:.1f} 3.5v7M{h:.1f} 3.5v7"/></svg>'
    ).format(kind=kind, l=x[0] + 1, v=max(x[1], 1.0), h=x[2] + 1)


def gauge(values: Sequence[float | None], human: float | None, top: float = 1.0) -> Markup:
    """Values of systems as dots on a line from 0 to ``top``, and the human value as a bar across it."""
    known = [v for v in values if v is not None]
    if not known:
        return Markup("")
    most = max([*known, *([human] if human is not None else [])])
    top = top if most <= top else 1.2 * most

    def x(value: float) -> float:
        return 6 + 188 * max(0.0, value) / top

    parts = [Markup('<path class="axis" d="M6 12H194M6 8v8M194 8v8"/>')]
    if human is not None:
        parts.append(Markup('<path class="human" d="M{:.1f} 2v20"/>').format(x(human)))
    for place, value in enumerate(values):
        if value is not None:
            parts.append(_mark(x(value), 12, place))
    return _svg("gauge", 200, 24, "", "", parts)


def scatter(points: Mapping[str, tuple[float, float]], title: str, told: str) -> Markup:
    """Shares of functions among human and among synthetic turns, both on log axes; never is at the edge.

    Args:
        points: Function → share among human turns, share among synthetic ones; one of them above 0.
        title: Of the picture.
        told: What it shows, for who does not see it.
    """
    least = min((v for pair in points.values() for v in pair if v > 0), default=0.001)
    low = math.floor(math.log10(least))
    edge, span = 66.0, -low or 1

    def place(value: float, size: float) -> float:
        return edge / 4 if value <= 0 else edge + (size - edge) * (math.log10(value) - low) / span

    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    parts = [
        Markup('<path class="frame" d="M{:.0f} {:.0f}H{:.0f}M{:.0f} {:.0f}V{:.0f}"/>').format(
            _LEFT, _TOP + height, _LEFT + width, _LEFT, _TOP, _TOP + height
        ),
        Markup('<path class="same" d="M{:.1f} {:.1f}L{:.1f} {:.1f}"/>').format(
            _LEFT + edge, _TOP + height - edge, _LEFT + width, _TOP
        ),
    ]
    for value in [0.0, *(10.0**power for power in range(low, 1))]:
        x, y = _LEFT + place(value, width), _TOP + height - place(value, height)
        label = "never" if value == 0 else f"{100 * value:g} %"
        parts.append(_text(x, _TOP + height + 17, label, "middle"))
        parts.append(_text(_LEFT - 8, y + 4, label, "end"))
        if value:
            parts.append(Markup('<path class="grid" d="M{:.1f} {:.1f}v{:.1f}"/>').format(x, _TOP, height))
            parts.append(Markup('<path class="grid" d="M{:.1f} {:.1f}h{:.1f}"/>').format(_LEFT, y, width))
    for name, (human, synthetic) in points.items():
        parts.append(
            Markup('<circle class="dot" cx="{:.1f}" cy="{:.1f}" r="3.6"><title>{}</title></circle>').format(
                _LEFT + place(human, width),
                _TOP + height - place(synthetic, height),
                f"{name}: {100 * human:.2g} % of human turns, {100 * synthetic:.2g} % of synthetic ones",
            )
        )
    parts.append(_text(_LEFT + width / 2, _HEIGHT - 8, "share of human turns", "middle", "label"))
    parts.append(_upright("share of synthetic turns", height))
    return _svg("scatter", _WIDTH, _HEIGHT, title, told, parts)


def lengths(sides: Mapping[str, Mapping[int, float]], title: str, told: str) -> Markup:
    """Distributions of the number of words: the first side, the human one, as an area, the others as lines.

    Args:
        sides: Name → number of words → share.
        title: Of the picture.
        told: What it shows.
    """
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    longest = max((n for side in sides.values() for n, v in side.items() if v > 0.002), default=1)
    top = max((v for side in sides.values() for v in side.values()), default=1.0) * 1.08
    step = width / (longest + 1)

    def steps(side: Mapping[int, float]) -> str:
        ys = [_TOP + height * (1 - side.get(n, 0.0) / top) for n in range(longest + 1)]
        return "".join(f"L{_LEFT + n * step:.1f} {y:.1f}H{_LEFT + (n + 1) * step:.1f}" for n, y in enumerate(ys))

    parts = []
    for place, side in enumerate(sides.values()):
        if place == 0:
            shape = f"M{_LEFT} {_TOP + height}{steps(side)}V{_TOP + height}Z"
            parts.append(Markup('<path class="area" d="{}"/>').format(shape))
        else:
            parts.append(Markup('<path class="line s{}" d="M{}"/>').format(place - 1, steps(side)[1:]))
    parts.append(Markup('<path class="frame" d="M{:.0f} {:.0f}H{:.0f}"/>').format(_LEFT, _TOP + height, _LEFT + width))
    for n in range(0, longest + 1, 5 if longest > 8 else 1):
        parts.append(_text(_LEFT + (n + 0.5) * step, _TOP + height + 17, str(n), "middle"))
    for share in _ticks(top):
        y = _TOP + height * (1 - share / top)
        parts.append(_text(_LEFT - 8, y + 4, f"{100 * share:g} %", "end"))
        parts.append(Markup('<path class="grid" d="M{:.1f} {:.1f}h{:.1f}"/>').format(_LEFT, y, width))
    parts.append(_text(_LEFT + width / 2, _HEIGHT - 8, "words in the utterance", "middle", "label"))
    return _svg("lengths", _WIDTH, _HEIGHT, title, told, parts)


def curves(lines: Sequence[Curve], ticks: Mapping[float, str], title: str, told: str, label: str) -> Markup:
    """A metric against ε, with the deviation over seeds as whiskers; places on the x axis are equally far apart.

    Args:
        lines: One a system; x is a key of ``ticks``.
        ticks: Places of the x axis, rising, and their labels.
        title: Of the picture.
        told: What it shows.
        label: Of the x axis.
    """
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    top = max((y + (d or 0.0) for line in lines for _, y, d in line.points), default=1.0) * 1.08 or 1.0
    xs = {x: _LEFT + width * (i + 0.5) / len(ticks) for i, x in enumerate(ticks)}
    parts = [Markup('<path class="frame" d="M{:.0f} {:.0f}H{:.0f}"/>').format(_LEFT, _TOP + height, _LEFT + width)]
    for value in _ticks(top):
        y = _TOP + height * (1 - value / top)
        parts.append(_text(_LEFT - 8, y + 4, f"{value:g}", "end"))
        parts.append(Markup('<path class="grid" d="M{:.1f} {:.1f}h{:.1f}"/>').format(_LEFT, y, width))
    parts += [_text(xs[x], _TOP + height + 17, text, "middle") for x, text in ticks.items()]
    for place, line in enumerate(lines):
        if not line.points:
            continue
        points = sorted((xs[x] + 5 * place, _TOP + height * (1 - y / top), d) for x, y, d in line.points)
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y, _ in points)
        parts.append(Markup('<path class="line s{}" d="M{}"/>').format(place, path))
        for x, y, deviation in points:
            if deviation is not None:
                far = height * deviation / top
                parts.append(
                    Markup('<path class="line s{}" d="M{:.1f} {:.1f}V{:.1f}"/>').format(place, x, y - far, y + far)
                )
            parts.append(_mark(x, y, place))
    parts.append(_text(_LEFT + width / 2, _HEIGHT - 8, label, "middle", "label"))
    return _svg("curves", _WIDTH, _HEIGHT, title, told, parts)


def mark(place: int) -> Markup:
    """The mark of a system, for a legend."""
    return Markup('<svg class="key" viewBox="0 0 14 14" aria-hidden="true" focusable="false">{}</svg>').format(
        _mark(7, 7, place)
    )


def _mark(x: float, y: float, place: int) -> Markup:
    """A circle, square, diamond or triangle: systems differ in shape, not in colour alone."""
    shapes = (
        Markup('<circle class="mark s{p}" cx="{x:.1f}" cy="{y:.1f}" r="4.6"/>'),
        Markup('<path class="mark s{p}" d="M{x:.1f} {y:.1f}m-4.2 -4.2h8.4v8.4h-8.4z"/>'),
        Markup('<path class="mark s{p}" d="M{x:.1f} {y:.1f}m0 -5.6l5.6 5.6l-5.6 5.6l-5.6 -5.6z"/>'),
        Markup('<path class="mark s{p}" d="M{x:.1f} {y:.1f}m0 -5.4l5.2 9.2h-10.4z"/>'),
    )
    return shapes[place % len(shapes)].format(p=place, x=x, y=y)


def _ticks(top: float) -> list[float]:
    """Four or so round values up to ``top``."""
    size = 10 ** math.floor(math.log10(top / 2))
    step = next(size * k for k in (0.5, 1, 2, 5, 10) if top / (size * k) <= 5)
    return [round(step * i, 10) for i in range(int(top / step) + 1)]


def _text(x: float, y: float, text: str, anchor: str, kind: str = "tick") -> Markup:
    return Markup('<text class="{}" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(kind, x, y, anchor, text)


def _upright(text: str, height: float) -> Markup:
    middle = _TOP + height / 2
    return Markup(
        '<text class="label" x="12" y="{m:.1f}" transform="rotate(-90 12 {m:.1f})" text-anchor="middle">{t}</text>'
    ).format(m=middle, t=text)


def _svg(kind: str, width: float, height: float, title: str, told: str, parts: Sequence[Markup]) -> Markup:
    about = f'role="img" aria-label="{escape(f"{title}. {told}")}"' if title else 'aria-hidden="true" focusable="false"'
    return Markup('<svg class="chart {}" viewBox="0 0 {:g} {:g}" {}>{}</svg>').format(
        kind, width, height, Markup(about), Markup("").join(parts)
    )
