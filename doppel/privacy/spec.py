"""The frozen description of one private system: what is promised, for whom, and with which noise."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from doppel.privacy.accounting import (
    ACCOUNTANTS,
    Accountant,
    CalibrationError,
    Mechanism,
    calibrate_noise_multiplier,
    default_delta,
)


@dataclass(frozen=True)
class PrivacySpec:
    """Everything that the guarantee depends on, fixed before the first step.

    Formal guarantees:
        A run that takes at most `stage_steps[i]` steps in stage i, each on a Poisson sample of rate `sample_rate`, with
        unit gradients clipped to `max_grad_norm` and noise `noise_multiplier * max_grad_norm` on their sum, is
        (`target_epsilon`, `delta`)-differentially private under adding or removing one `unit`, for all stages released
        together, if the spec came from `plan`. A spec written by hand promises nothing until the ledger composed it.

    Attributes:
        target_epsilon: Budget for all stages together.
        delta: Failure probability; below 1/`num_units` to mean anything.
        unit: What one neighbour adds or removes, such as "utterance" or "dialogue".
        max_grad_norm: Clipping norm C of one unit's gradient.
        noise_multiplier: sigma; the noise on the sum has standard deviation sigma * C per coordinate.
        sample_rate: q = `batch_size` / `num_units`.
        num_units: Number N of units in the private data.
        batch_size: Expected number B of units in a step; public, and what sums are divided by.
        accountant: Which bound `target_epsilon` was calibrated with.
        stage_steps: Planned steps of each stage; all stages share sigma, C, q and the budget.
        max_rows_per_unit: Rows of a sampled unit that a step uses, at most; public, and sigma does not depend on it.
            None where a unit has no rows to choose from, as in a histogram.
        histogram_noise_multiplier: sigma of one noised histogram (sensitivity 1) that the budget also pays, see
            `doppel.privacy.histogram`; None if there is none.
    """

    target_epsilon: float
    delta: float
    unit: str
    max_grad_norm: float
    noise_multiplier: float
    sample_rate: float
    num_units: int
    batch_size: int
    accountant: Accountant
    stage_steps: tuple[int, ...]
    max_rows_per_unit: int | None = None
    histogram_noise_multiplier: float | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be a guarantee."""
        object.__setattr__(self, "stage_steps", tuple(self.stage_steps))
        _check_sizes(self.num_units, self.batch_size)
        for name in ("target_epsilon", "max_grad_norm", "noise_multiplier"):
            value = getattr(self, name)
            if not 0.0 < value < math.inf:
                raise CalibrationError(f"{name} is {value}: give a finite number above 0.")
        if not 0.0 < self.delta < 1.0:
            raise CalibrationError(f"delta is {self.delta}, not in (0, 1): leave it out for 1/(N ln N).")
        if not self.unit:
            raise CalibrationError("unit is empty: say what is protected, such as 'utterance' or 'dialogue'.")
        if self.max_rows_per_unit is not None and self.max_rows_per_unit < 1:
            raise CalibrationError(f"max_rows_per_unit is {self.max_rows_per_unit}: a unit needs at least one row.")
        if self.accountant not in ACCOUNTANTS:
            raise CalibrationError(f"accountant is {self.accountant!r}: choose one of {', '.join(ACCOUNTANTS)}.")
        histogram_mechanisms(self.histogram_noise_multiplier)
        if not math.isclose(self.sample_rate, self.batch_size / self.num_units, rel_tol=1e-9):
            raise CalibrationError(
                f"sample_rate is {self.sample_rate}, but batch_size / num_units is "
                f"{self.batch_size / self.num_units}: account the rate that is sampled."
            )
        if not self.stage_steps or any(steps < 1 for steps in self.stage_steps):
            raise CalibrationError(f"stage_steps is {self.stage_steps}: every stage needs at least one step.")

    @property
    def steps(self) -> int:
        """Planned steps of all stages together."""
        return sum(self.stage_steps)

    def mechanisms(self) -> tuple[Mechanism, ...]:
        """One mechanism per stage, as planned, and the histogram if there is one."""
        stages = [Mechanism(self.sample_rate, self.noise_multiplier, steps) for steps in self.stage_steps]
        return (*stages, *histogram_mechanisms(self.histogram_noise_multiplier))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready fields, in the order of the class."""
        return {**asdict(self), "stage_steps": list(self.stage_steps)}


def histogram_mechanisms(noise_multiplier: float | None) -> tuple[Mechanism, ...]:
    """The plain Gaussian release of one histogram in which a unit weighs at most 1; nothing for None."""
    if noise_multiplier is None:
        return ()
    if not 0.0 < noise_multiplier < math.inf:
        raise CalibrationError(f"histogram_noise_multiplier is {noise_multiplier}: give a finite number above 0.")
    return (Mechanism(1.0, noise_multiplier, 1),)


def what_is_protected(unit: str, max_rows_per_unit: int | None = None) -> str:
    """What a neighbouring data set adds or removes, in words that follow "adding or removing".

    Args:
        unit: The privacy unit.
        max_rows_per_unit: Rows of a sampled unit that a step uses, at most; None leaves it out.
    """
    if unit == "utterance":
        return (
            "one utterance (one user turn with its parse tree; whoever contributed k of them is covered by k times "
            "this epsilon, at a larger delta)"
        )
    whole = {"dialogue": "all its turns, however many", "user": "all their turns, however many"}.get(unit)
    if whole is None:
        return f"one {unit}"
    if max_rows_per_unit is not None:
        whole += f"; each step uses at most {max_rows_per_unit} of them, chosen uniformly"
    return f"one {unit} ({whole})"


def plan(
    num_units: int,
    batch_size: int,
    epochs: float | Sequence[float],
    target_epsilon: float,
    delta: float | None = None,
    accountant: Accountant = "pld",
    unit: str = "utterance",
    max_grad_norm: float = 0.1,
    max_rows_per_unit: int | None = None,
    histogram_noise_multiplier: float | None = None,
) -> PrivacySpec:
    """Calibrate one noise multiplier for one or more stages on the same data; spends nothing.

    Args:
        num_units: Number N of units in the private data.
        batch_size: Expected batch size B, in units.
        epochs: Expected passes over the data, one number per stage. A stage takes ceil(epochs * N / B) steps.
        target_epsilon: Budget of all stages together.
        delta: Failure probability; 1/(N ln N) if left out. A value of 1/N or more draws a warning.
        accountant: Which bound to calibrate with.
        unit: What one neighbour adds or removes.
        max_grad_norm: Clipping norm C; it does not enter sigma.
        max_rows_per_unit: Rows of a sampled unit that a step uses; it does not enter sigma.
        histogram_noise_multiplier: Of a histogram that is released beside the stages; the stages get the noise with
            which everything together meets the target.

    Returns:
        The spec, whose epsilon is at most `target_epsilon`.

    Raises:
        CalibrationError: If an input is not valid, or no noise reaches the target.
    """
    _check_sizes(num_units, batch_size)
    stages = [epochs] if isinstance(epochs, int | float) else list(epochs)
    if not stages:
        raise CalibrationError("epochs is empty: give one number per stage.")
    for value in stages:
        if not 0.0 < value < math.inf:
            raise CalibrationError(f"epochs is {value}: give a finite number above 0 for every stage.")
    delta = default_delta(num_units) if delta is None else delta
    if 1.0 > delta >= 1.0 / num_units:
        warnings.warn(
            f"delta {delta:.3g} is not below 1/N = {1.0 / num_units:.3g}: publishing one random unit would "
            f"satisfy it. Take a smaller delta, such as 1/(N ln N) = {default_delta(num_units):.3g}.",
            stacklevel=2,
        )
    sample_rate = batch_size / num_units
    # Exact arithmetic: 3 epochs at B/N = 1/10 are 30 steps, never 31.
    stage_steps = tuple(
        math.ceil(Fraction(value).limit_denominator(10**6) * num_units / batch_size) or 1 for value in stages
    )
    sigma = calibrate_noise_multiplier(
        target_epsilon,
        delta,
        [(sample_rate, steps) for steps in stage_steps],
        accountant=accountant,
        beside=histogram_mechanisms(histogram_noise_multiplier),
    )
    return PrivacySpec(
        target_epsilon=target_epsilon,
        delta=delta,
        unit=unit,
        max_grad_norm=max_grad_norm,
        noise_multiplier=sigma,
        sample_rate=sample_rate,
        num_units=num_units,
        batch_size=batch_size,
        accountant=accountant,
        stage_steps=stage_steps,
        max_rows_per_unit=max_rows_per_unit,
        histogram_noise_multiplier=histogram_noise_multiplier,
    )


def _check_sizes(num_units: int, batch_size: int) -> None:
    if num_units < 2:
        raise CalibrationError(f"num_units is {num_units}: a private data set needs at least 2 units.")
    if batch_size < 1:
        raise CalibrationError(f"batch_size is {batch_size}: give the expected number of units per step, at least 1.")
    if batch_size > num_units:
        raise CalibrationError(
            f"batch_size {batch_size} is larger than num_units {num_units}: a step samples each unit at most once, "
            f"so lower the batch size to at most {num_units}."
        )
