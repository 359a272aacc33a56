"""Bands: noise of which later steps take a part back, so that the weights get less of it for the same ε.

A step's noise is x_t with C x = z: z is independent, and C a lower triangular Toeplitz matrix of b coefficients
(Choquette-Choo et al., 2023, *(Amplified) banded matrix factorization*, arXiv 2306.08153). One band is independent
noise. The coefficients decide how much noise the weights get and nothing of what is promised, which their norm of 1 and
the spacing of a unit's steps give: see :class:`~doppel.privacy.plan.DPPlan`.

They are the first b of the square root of what the optimiser does to gradients, m ← μ m + (1 - μ) g, w ← w - η m, at
μ = .9 and a constant η, scaled to norm 1: the banded square root (Kalinin and Lampert, 2024, arXiv 2405.13763). At 59
steps and 8 or 16 bands their error is at most .2 % above the least for this η, for one that falls linearly or by a
cosine, with a warm-up or without, and for μ = .95; for μ = .5 it is 9 and 17 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

#: What ``auto`` tries.
CHOICES = (1, 2, 4, 8, 16, 32)
#: Fewer bands, or one, are taken where more lower the error by less: each more is memory of the size of the trained
#: weights, and single steps are louder.
GAIN = 0.05
#: μ of the optimiser.
MOMENTUM = 0.9
#: Coefficients are cut to so many decimals, towards zero, so that no rounding brings their norm above 1.
_DECIMALS = 6


def coefficients(bands: int) -> tuple[float, ...]:
    """Return the b numbers of a column of C, of norm 1 (at most, by less than 1e-4)."""
    import numpy as np

    root = np.cumprod([1.0, *(1.0 - 0.5 / np.arange(1, bands))])  # of 1 / (1 - x), a power series
    row = np.convolve(root, root * MOMENTUM ** np.arange(bands))[:bands]
    return tuple(float(c) for c in np.trunc(row / np.linalg.norm(row) * 10**_DECIMALS) / 10**_DECIMALS)


def rmse(row: Sequence[float], steps: int) -> float:
    """Return the root of the mean of squares of the weights' noise over T steps, per z of standard deviation 1, for the
    coefficients of a row. Columns that the end cuts are scaled, too, which lowers it by another per cent at the most.
    """
    import numpy as np
    from scipy.signal import lfilter

    # One Toeplitz matrix times the inverse of the other: a quotient of power series.
    column: np.ndarray = lfilter([1.0], list(row), 1.0 - MOMENTUM ** np.arange(1, steps + 1))
    return math.sqrt(float(np.arange(steps, 0, -1.0) @ column**2) / steps)


def relative_rmse(bands: int, stage_steps: Sequence[int]) -> float:
    """Return the geometric mean over stages of the error over that of one band, at equal noise of z."""
    ratios = [rmse(coefficients(bands), steps) / rmse((1.0,), steps) for steps in stage_steps]
    return math.prod(ratios) ** (1.0 / len(ratios))
