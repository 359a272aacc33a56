"""The (ε, δ) that divergences of several orders would amount to, if they were known for every order. They are not.

Appendix 4.4 of Gusain and Leith lays a line ξ + ρα above D_α and reads ε = ξ + ρ + 2√(ρ ln(1/δ)) off it, as for
(ξ, ρ)-concentrated differential privacy (Bun and Steinke, 2016, *Concentrated differential privacy*, lemma 3.5). That
needs D_α ≤ ξ + ρα for *all* α > 1 and for the *true* divergence. Here are some α, and estimates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from doppel.errors import UserError

#: Stands wherever such a number is shown.
BANNER = (
    "epsilon_estimate is an estimate and no differential privacy guarantee: it is read off estimated divergences of "
    "some orders, whose plateau at high orders is an artefact of the estimator, so it is too small by an unknown amount"
)


@dataclass(frozen=True)
class Line:
    """A line ξ + ρα that lies above estimated divergences.

    Attributes:
        xi: Intercept ξ.
        rho: Slope ρ, at least 0.
        delta: δ.
    """

    xi: float
    rho: float
    delta: float

    @property
    def epsilon_estimate(self) -> float:
        """ε of the line, at least 0; see :data:`BANNER`."""
        return max(0.0, self.xi + self.rho + 2 * math.sqrt(self.rho * math.log(1 / self.delta)))


def best_line(divergences: Mapping[float, float], delta: float) -> Line:
    """The line of smallest ε above the divergences: an edge of their upper hull, or the horizontal one.

    A line between two edges turns about a corner, where ε is a concave function of the slope: one of the two edges has
    a smaller one. What is steeper than the first edge would make ε as small as one likes, if nothing were known of
    lower orders: so give order 1, at which every such line has a larger ε. D_α never falls with α, so an estimate that
    does is raised to the largest one before it.

    Args:
        divergences: Order → D_α, in nats; order 1 among them.
        delta: δ.

    Raises:
        UserError: There are fewer than two orders, or δ is no probability.
    """
    if not 0 < delta < 1:
        raise UserError(f"is {delta:g}: give a probability between 0 and 1", about="delta")
    if len(divergences) < 2:
        raise UserError("a line needs divergences of at least two orders", about="orders")
    orders = sorted(divergences)
    risen = np.maximum.accumulate([divergences[order] for order in orders])
    corners: list[tuple[float, float]] = []
    for point in zip(orders, map(float, risen), strict=True):
        while len(corners) > 1 and _turn(corners[-2], corners[-1], point) >= 0:
            corners.pop()
        corners.append(point)
    lines = [Line(max(risen), 0.0, delta)]
    for (left, low), (right, high) in pairwise(corners):
        slope = (high - low) / (right - left)
        lines.append(Line(low - slope * left, slope, delta))
    return min(lines, key=lambda line: line.epsilon_estimate)


def _turn(first: tuple[float, float], second: tuple[float, float], third: tuple[float, float]) -> float:
    """Above 0 where the way from the first to the third point bends to the left at the second."""
    (x0, y0), (x1, y1), (x2, y2) = first, second, third
    return (x1 - x0) * (y2 - y0) - (y1 - y0) * (x2 - x0)
