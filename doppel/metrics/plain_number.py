"""The value of a metric as a report shows it."""

from __future__ import annotations

import math

from torch import Tensor


def plain_number(value: Tensor) -> float | int | None:
    """A scalar as a Python number, rounded to six places; None for what could not be computed (nan)."""
    number = value.item()
    if isinstance(number, int):
        return number
    return round(number, 6) if math.isfinite(number) else None
