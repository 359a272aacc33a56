"""The one mechanism that everything here composes: a Poisson-subsampled Gaussian sum."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from doppel.errors import UserError

if TYPE_CHECKING:
    from dp_accounting import dp_event


class CalibrationError(UserError):
    """A privacy request that cannot be met, or inputs that make no sense. The message is one line."""


@dataclass(frozen=True)
class Mechanism:
    """`steps` releases of a Poisson-subsampled Gaussian sum.

    Attributes:
        sample_rate: Probability q with which each unit joins a step, in (0, 1]; 1 is the plain Gaussian
            mechanism.
        noise_multiplier: Noise standard deviation over the sensitivity (sigma), at least 0; 0 gives no
            privacy.
        steps: Number of releases, at least 0.
    """

    sample_rate: float
    noise_multiplier: float
    steps: int

    def __post_init__(self) -> None:
        """Refuse values outside their ranges."""
        if not 0.0 < self.sample_rate <= 1.0:
            raise CalibrationError(
                f"sample_rate is {self.sample_rate}, not in (0, 1]: give the expected batch size over the "
                "number of units."
            )
        if not 0.0 <= self.noise_multiplier < math.inf:
            raise CalibrationError(f"noise_multiplier is {self.noise_multiplier}: give a finite number >= 0.")
        if self.steps < 0 or self.steps != int(self.steps):
            raise CalibrationError(f"steps is {self.steps}: give a whole number >= 0.")

    @property
    def event(self) -> dp_event.DpEvent:
        """The same in the words of dp-accounting, for its accountants."""
        from dp_accounting import dp_event

        step: dp_event.DpEvent = dp_event.GaussianDpEvent(self.noise_multiplier)
        if self.sample_rate < 1.0:
            step = dp_event.PoissonSampledDpEvent(self.sample_rate, step)
        return dp_event.SelfComposedDpEvent(step, self.steps)
