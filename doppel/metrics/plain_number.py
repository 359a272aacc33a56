"""The value of a metric as a report shows it."""

from __future__ import annotations

import math


def plain_number(value: float) -> float | int | None:
    """Round a number to six places; None for what could not be computed (nan)."""
    if isinstance(value, int):
        return value
    return round(value, 6) if math.isfinite(value) else None
