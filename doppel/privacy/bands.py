"""Bands: noise of which later steps take a part back, so that the weights get less of it for the same ε.

A step's noise is x_t with C x = z: z is independent, and C a banded Toeplitz matrix of b coefficients with columns of
norm 1 (Choquette-Choo et al., 2023, *(Amplified) banded matrix factorization*, arXiv 2306.08153). One band is
independent noise. What the coefficients are decides how much noise the weights get and nothing of what is promised,
which norm 1 and the spacing of a unit's steps give: see :class:`~doppel.privacy.plan.DPPlan`.

The optimiser is m ← μ m + (1 - μ) g, w ← w - η m, and the error that of w over all steps, at a constant η and μ = .9.
Other schedules and momenta have no coefficients of their own, since they would gain next to nothing: at 59 steps and
8 or 16 bands those of a constant rate lose at most .7 % of RMSE where it falls linearly or by a cosine to 0, with a
warm-up or without, .3 % at μ = .95, and 1 and 4 % at μ = .5; at 300 steps .1 %.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from doppel.privacy.accounting import DPMechanism

#: What is tried.
CHOICES = (1, 2, 4, 8, 16, 32)
#: μ of the optimiser.
MOMENTUM = 0.9
#: Weight of the log of a step's own noise beside that of the weights': for .01 of error the noise of a step halves.
PENALTY = 0.1
#: Fewer bands, or one, are taken where more lower the error by less: each more is memory of the size of the trained
#: weights, and single steps are louder.
GAIN = 0.05
#: Of the rough noise: Rényi orders, and the range of σ.
_ORDERS = (*range(2, 17), 20, 24, 28, 32, 40, 48, 64, 96, 128, 256)
_LEAST, _MOST = 0.05, 1e3
#: Steps that coefficients are made for, at most: those for more lower the error by 1.5 % at best (measured to 32 bands
#: and 100,000 steps), and powers of what a search tries overflow.
_HORIZON = 500
#: Coefficients are cut to so many decimals, towards zero, so that no rounding brings their norm above 1.
_DECIMALS = 6


@functools.lru_cache(maxsize=64)
def coefficients(bands: int, steps: int, penalty: float = PENALTY) -> tuple[float, ...]:
    """Return the b numbers of least error in a training of so many steps, of norm 1 (at most, by less than 1e-4).

    Args:
        bands: b, at least 1.
        steps: T.
        penalty: Weight of a step's own noise; 0 for the weights' alone.
    """
    import numpy as np
    from scipy.optimize import minimize

    if bands == 1:
        return (1.0,)
    steps = min(steps, max(_HORIZON, bands))
    momentum, step = _workload(steps), np.eye(1, steps)[0]
    left = np.arange(steps, 0, -1.0)

    def log_error(free: np.ndarray, workload: np.ndarray) -> tuple[float, np.ndarray]:
        """Log of the root of the sum of squares of workload · C⁻¹, and its gradient, up to the norm of C's columns."""
        inverse = _divide(workload, [1.0, *free])
        twice = _divide(inverse, [1.0, *free])
        total = float(left @ inverse**2)
        slope = [-float((left * inverse)[j:] @ twice[: steps - j]) for j in range(1, bands)]
        return math.log(total) / 2, np.array(slope) / total

    def loss(free: np.ndarray) -> tuple[float, np.ndarray]:
        (weights, own), norm = (log_error(free, momentum), log_error(free, step)), 1.0 + float(free @ free)
        value = weights[0] + penalty * own[0] + (1.0 + penalty) * math.log(norm) / 2
        return value, weights[1] + penalty * own[1] + (1.0 + penalty) * free / norm

    found = minimize(loss, 0.5 ** np.arange(1, bands), jac=True, method="L-BFGS-B", options={"ftol": 1e-14})
    row = np.array([1.0, *found.x])
    return tuple(float(c) for c in np.trunc(row / np.linalg.norm(row) * 10**_DECIMALS) / 10**_DECIMALS)


def rmse(row: Sequence[float], steps: int) -> float:
    """Return the root of the mean of squares of the weights' noise over all steps, per z of standard deviation 1.

    The columns that end with the training have norm 1, too, which lowers it by another per cent at the most.
    """
    import numpy as np

    inverse = _divide(_workload(steps), row)
    return math.sqrt(float(np.arange(steps, 0, -1.0) @ inverse**2) / steps)


def relative_rmse(rows: Sequence[Sequence[float]], stage_steps: Sequence[int]) -> float:
    """Return the geometric mean over stages of the error over that of one band, at equal noise of z."""
    ratios = [rmse(row, steps) / rmse((1.0,), steps) for row, steps in zip(rows, stage_steps, strict=True)]
    return math.prod(ratios) ** (1.0 / len(ratios))


def best_bands(stage_steps: Sequence[int], sample_rate: float, noise_of: Callable[[int], float]) -> int:
    """Return the fewest bands, maybe one, than which others lower the error by less than :data:`GAIN`.

    Args:
        stage_steps: Steps of each stage.
        sample_rate: q of a step; b q is at most 1.
        noise_of: σ that so many bands need, or what is as good to compare them by.
    """
    fit = [b for b in CHOICES if b * sample_rate <= 1.0 and b <= min(stage_steps)]
    rows = {b: [coefficients(b, steps) for steps in stage_steps] for b in fit}
    errors = {b: noise_of(b) * relative_rmse(rows[b], stage_steps) for b in fit}
    return next(b for b in fit if (1.0 - GAIN) * errors[b] <= min(errors.values()))


def rough_noise_multiplier(
    mechanisms_of: Callable[[float], Sequence[DPMechanism]], target_epsilon: float, delta: float
) -> float:
    """Return σ by a Rényi bound of a few whole orders, in milliseconds: plans are compared by it, and nothing promised.

    Its ratios are within 1 % of those by PLD (measured, ε from .5 to 16).
    """
    from dp_accounting import ComposedDpEvent
    from dp_accounting.rdp import RdpAccountant
    from scipy.optimize import brentq

    def excess(log_sigma: float) -> float:
        events = [mechanism.dp_event for mechanism in mechanisms_of(math.exp(log_sigma))]
        epsilon = RdpAccountant(_ORDERS).compose(ComposedDpEvent(events)).get_epsilon(delta)
        return math.log(min(max(epsilon, 1e-6), 1e6) / target_epsilon)

    low, high = math.log(_LEAST), math.log(_MOST)
    if excess(low) <= 0.0 or excess(high) >= 0.0:
        return _LEAST if excess(low) <= 0.0 else _MOST
    return math.exp(brentq(excess, low, high, xtol=1e-3))


def _workload(steps: int) -> np.ndarray:
    """What a gradient of one step has done to the weights after 1, 2, … steps, in units of the rate."""
    import numpy as np

    return 1.0 - MOMENTUM ** np.arange(1, steps + 1)


def _divide(series: np.ndarray, row: Sequence[float]) -> Any:
    """The series over the coefficients, as power series: one Toeplitz matrix times the inverse of the other."""
    from scipy.signal import lfilter

    return lfilter([1.0], list(row), series)
