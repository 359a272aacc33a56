"""What a training promises, and with which noise: the budget, and the plan that keeps it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from doppel.privacy.accounting import (
    Accountant,
    CalibrationError,
    DPMechanism,
    Mechanism,
    calibrate_noise_multiplier,
    check_terms,
    compute_epsilon,
    is_same_noise,
    mu_of,
    plain_mu_squared,
    poisson_rate,
)
from doppel.privacy.bands import coefficients, relative_rmse

#: A stage of so many rounds or more has one in reserve, for a restart within a round: its noise rises by 2 % at the
#: most (measured: 1.8 % at 21 rounds, .8 at 41). Of 8 rounds it would be 4.3 %, more than a restart costs there: it
#: ends the training b - 1 steps early, at worst.
RESERVE_FROM = 20
#: What the ledger calls a training with bands.
BANDED = "banded_matrix_factorization"
#: Kinds of trainings, which alone have a clipping norm and a batch size.
TRAININGS = (Mechanism.kind, BANDED)
_RECORDED = (
    "unit", "max_rows_per_unit", "sample_rate", "noise_multiplier", "max_grad_norm", "batch_size", "num_units", "bands",
    "coefficients",
)  # fmt: skip


def counted_in(bands: int) -> str:
    """Return what a ledger counts a training in, for people."""
    return "steps" if bands == 1 else f"rounds of {bands} steps"


@dataclass(frozen=True)
class PrivacyBudget:
    """What everything in a scope may cost together.

    Attributes:
        target_epsilon: Epsilon of all stages together.
        delta: Failure probability; below 1/N to mean anything.
        accountant: Which bound must hold.
        unit: What one neighbour adds or removes, such as "utterance" or "dialogue".
    """

    target_epsilon: float
    delta: float
    accountant: Accountant
    unit: str

    def __post_init__(self) -> None:
        """Refuse what cannot be a guarantee."""
        check_terms(self.target_epsilon, self.delta, self.accountant)
        if not self.unit:
            raise CalibrationError("unit is empty: say what is protected, such as 'utterance' or 'dialogue'.")

    def epsilon(self, spent: Sequence[DPMechanism]) -> float:
        """Return what mechanisms cost together, see :func:`~doppel.privacy.accounting.compute_epsilon`."""
        return compute_epsilon(spent, self.delta, self.accountant)

    def allows(self, spent: Sequence[DPMechanism]) -> bool:
        """Return whether mechanisms together cost at most the target; an epsilon that is no number does not."""
        return self.epsilon(spent) <= self.target_epsilon

    def remaining_steps(
        self, spent: Sequence[Mechanism], sample_rate: float, noise_multiplier: float, limit: int
    ) -> int:
        """Return how many more steps of (q, sigma) may follow `spent`, counted up to `limit`; 0 if none."""
        if limit < 1:
            return 0
        low, middle, high = 0, limit, limit + 1  # low fits (or is zero), high does not (or is not asked for)
        while high - low > 1:
            if self.allows([*spent, Mechanism(sample_rate, noise_multiplier, middle)]):
                low = middle
            else:
                high = middle
            middle = (low + high) // 2
        return low


def calibrate(
    budget: PrivacyBudget, known: Sequence[DPMechanism], unknown: Callable[[float], Sequence[DPMechanism]]
) -> float:
    """Return the least noise multiplier with which a budget pays for something beside what is known already.

    Formal guarantees:
        Gaussian releases of sensitivity 1 without subsampling, of noise multipliers s, are √(Σ 1/s²)-GDP together,
        exactly (Dong, Roth and Su, 2022, corollary 3.3). So where all are, T of them have σ = √(T / (μ² - Σ 1/s²)) for
        the μ of (ε, δ). Where something is no such release, where the ledger's accountant finds more than ε by its
        rounding, or where another one was asked for, σ is what that accountant calibrates.

    Args:
        budget: ε, δ and accountant.
        known: What it pays for, with its noise.
        unknown: What it is also to pay for, for a σ.

    Raises:
        CalibrationError: No noise keeps the ε.
    """
    own = unknown(1.0)
    of_own, of_known = plain_mu_squared(own), plain_mu_squared(known)
    is_training = any(one.kind in TRAININGS for one in own)  # whose noise stays as it was begun with
    if budget.accountant == "pld" and not is_training and of_own is not None and of_known is not None:
        left = mu_of(budget.target_epsilon, budget.delta) ** 2 - of_known
        if left > 0 and budget.allows([*known, *unknown(sigma := math.sqrt(of_own / left))]):
            return sigma
    terms = (budget.target_epsilon, budget.delta, budget.accountant)
    return calibrate_noise_multiplier(lambda sigma: [*unknown(sigma), *known], *terms)


def changed_terms(known: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    """Return the names of the terms that are asked for and are others than those known.

    Formal guarantees:
        Noise and δ are computed, and another processor ends at other last digits: that is no other term, and whoever
        compares goes on with what is known, so what is charged is what is drawn.
    """

    def is_changed(name: str) -> bool:
        if name == "delta" or name.endswith("noise_multiplier"):
            return not is_same_noise(known.get(name), asked[name])
        return bool(known.get(name) != asked[name])

    return list(filter(is_changed, asked))


@dataclass(frozen=True)
class DPPlan:
    """Everything that the guarantee of one training depends on, fixed before the first step.

    Formal guarantees:
        A run that takes at most `stage_steps[i]` steps in stage i, each on a Poisson sample of rate `sample_rate`, with
        unit gradients clipped to `max_grad_norm` and noise `noise_multiplier * max_grad_norm` on their sum, is
        (`budget.target_epsilon`, `budget.delta`)-differentially private under adding or removing one `budget.unit`, for
        all stages released together, if the plan came from `plan`. One written by hand promises nothing until the
        ledger composed it.

        With `bands` b above 1 the noise of steps is correlated: x with C x = z, z independent of standard deviation
        `noise_multiplier * max_grad_norm`, and C lower triangular, b numbers a column, each column of norm at most 1. A
        secret die of each unit's own deals it to one of b groups, and it joins only steps of its group, each with
        probability b q at most 1. What is released is as good as C g + z for the clipped sums g. Given its group, a
        unit's steps are b apart, so in C g each moves rows of its own, by at most one column of norm 1 times C: its
        turns are Poisson-subsampled Gaussian mechanisms of rate b q (`round_rate`) and noise `noise_multiplier`, one in
        any b steps that follow one another, a *round*. That holds for every group, and so for the secret one; and for
        gradients that depend on what was released before (Denisov et al., 2022, arXiv 2202.08312; amplification by
        cyclic Poisson sampling: Choquette-Choo et al., 2023, arXiv 2306.08153). A process begins a
        *segment*: its noise is independent of all before, under new groups, so rounds are counted from its first step.
        n steps of a segment are at most ⌈n/b⌉ rounds, wherever it stops, and a step may not be left out or repeated.

    Attributes:
        budget: What all stages, and the releases beside them, may cost together.
        num_units: Number N of units in the private data.
        expected_batch_size: Expected number B of units in a step; public, and what sums are divided by.
        max_grad_norm: Clipping norm C of one unit's gradient.
        noise_multiplier: sigma; the noise on the sum has standard deviation sigma * C per coordinate.
        stage_steps: Planned steps of each stage; all stages share sigma, C, q and the budget.
        max_rows_per_unit: Rows of a sampled unit that a step uses, at most; None where it has none to choose from.
        histogram_noise_multiplier: sigma of one noised histogram (sensitivity 1) that the budget also pays.
        words_noise_multiplier: sigma of the counts of words (sensitivity 1), likewise.
        bands: b, steps that noise is correlated over; 1 is independent noise.
    """

    budget: PrivacyBudget
    num_units: int
    expected_batch_size: int
    max_grad_norm: float
    noise_multiplier: float
    stage_steps: tuple[int, ...]
    max_rows_per_unit: int | None = None
    histogram_noise_multiplier: float | None = None
    words_noise_multiplier: float | None = None
    bands: int = 1

    def __post_init__(self) -> None:
        """Refuse what cannot be a guarantee."""
        object.__setattr__(self, "stage_steps", tuple(self.stage_steps))
        poisson_rate(self.num_units, self.expected_batch_size)
        for name in ("max_grad_norm", *(name for name in vars(self) if name.endswith("noise_multiplier"))):
            value = getattr(self, name)
            if value is not None and not 0.0 < value < math.inf:
                raise CalibrationError(f"{name} is {value}: give a finite number above 0.")
        if self.max_rows_per_unit is not None and self.max_rows_per_unit < 1:
            raise CalibrationError(f"max_rows_per_unit is {self.max_rows_per_unit}: a unit needs at least one row.")
        if not self.stage_steps or any(steps < 1 for steps in self.stage_steps):
            raise CalibrationError(f"stage_steps is {self.stage_steps}: every stage needs at least one step.")
        if not 1 <= self.bands <= self.most_bands:
            raise CalibrationError(
                f"bands is {self.bands}: give 1 to {self.num_units // self.expected_batch_size}, for a step draws from "
                f"one of so many groups of the units, and at most the steps of a stage, {min(self.stage_steps)}."
            )

    @property
    def sample_rate(self) -> float:
        """q = B/N."""
        return poisson_rate(self.num_units, self.expected_batch_size)

    @property
    def round_rate(self) -> float:
        """With which each unit joins a round of b steps, b q."""
        return poisson_rate(self.num_units, self.bands * self.expected_batch_size)

    @property
    def most_bands(self) -> int:
        """The most bands that there may be: b q ≤ 1, and b ≤ T."""
        return min(self.num_units // self.expected_batch_size, *self.stage_steps)

    def calibrated(self) -> DPPlan:
        """Return the plan with the noise that its budget needs."""
        sigma = calibrate(self.budget, self.releases, lambda sigma: replace(self, noise_multiplier=sigma).stages())
        return replace(self, noise_multiplier=sigma)

    @cached_property
    def independent(self) -> DPPlan:
        """The plan without bands."""
        return self if self.bands == 1 else replace(self, bands=1).calibrated()

    @property
    def equivalent(self) -> DPPlan:
        """Independent noise as large as this plan's in the weights; with bands it costs more."""
        relative = relative_rmse(self.bands, self.stage_steps)
        return replace(self.independent, noise_multiplier=self.noise_multiplier * relative)

    @property
    def noise_scale(self) -> float:
        """Standard deviation of independent noise in a coordinate of the mean, sigma C / B, which is public."""
        return self.independent.noise_multiplier * self.max_grad_norm / self.expected_batch_size

    def rounds(self, steps: int) -> int:
        """Return the rounds that begin in so many steps which follow one another."""
        return math.ceil(steps / self.bands)

    def reserve(self, steps: int) -> int:
        """Return the rounds of a stage of so many steps that are paid for beside, for a restart."""
        return int(self.bands > 1 and self.rounds(steps) >= RESERVE_FROM)

    @property
    def steps(self) -> int:
        """Planned steps of all stages together."""
        return sum(self.stage_steps)

    @property
    def releases(self) -> tuple[Mechanism, ...]:
        """The plain Gaussian releases beside the stages: a histogram and counts of words, if there are any."""
        noises = (self.histogram_noise_multiplier, self.words_noise_multiplier)
        return tuple(Mechanism(1.0, sigma, 1) for sigma in noises if sigma is not None)

    def stages(self) -> tuple[Mechanism, ...]:
        """Return one mechanism per stage, as planned."""
        rounds = [self.rounds(steps) + self.reserve(steps) for steps in self.stage_steps]
        return tuple(Mechanism(self.round_rate, self.noise_multiplier, num) for num in rounds)

    def mechanisms(self) -> tuple[Mechanism, ...]:
        """Return the stages, and what is released beside them."""
        return (*self.stages(), *self.releases)

    def terms(self, planned_steps: int, data_fingerprint: str) -> dict[str, Any]:
        """Return what a ledger's line says of a stage of so many steps; with bands, of its rounds."""
        numbers = {**self.to_dict(), "sample_rate": self.round_rate}
        told = {name: numbers[name] for name in _RECORDED if name in numbers}
        kind = Mechanism.kind if self.bands == 1 else BANDED
        return {"kind": kind, **told, "planned_steps": self.rounds(planned_steps), "data_fingerprint": data_fingerprint}

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, JSON-ready, the budget's first; B is called `batch_size`, as always on disk. Those of
        bands are left out where there is one.
        """
        own = asdict(self)
        if self.bands == 1:
            del own["bands"]
        else:
            own["coefficients"] = list(coefficients(self.bands))
        first = {**own.pop("budget"), "num_units": self.num_units, "batch_size": own.pop("expected_batch_size")}
        return {**first, **own, "stage_steps": list(self.stage_steps)}


@dataclass(frozen=True)
class ReleasePlan:
    """Everything that the guarantee of a release depends on, fixed before it is drawn.

    Attributes:
        budget: What its whole scope may cost together.
        kind: Of its mechanism.
        num_units: Number N of units in the private data.
        noise_multiplier: sigma.
        steps: How often it is drawn.
        beside: Further releases that the budget pays.
    """

    budget: PrivacyBudget
    kind: str
    num_units: int
    noise_multiplier: float
    steps: int = 1
    beside: tuple[Mechanism, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot be a guarantee."""
        if not 0.0 < self.noise_multiplier < math.inf:
            raise CalibrationError(f"noise_multiplier is {self.noise_multiplier}: give a finite number above 0.")

    def mechanisms(self) -> tuple[Mechanism, ...]:
        """Return the release, and what is released beside it."""
        return (Mechanism(1.0, self.noise_multiplier, self.steps), *self.beside)

    def terms(self, planned_steps: int, data_fingerprint: str) -> dict[str, Any]:
        """Return what a ledger's line says of it: as of a training, whose clipping norm is the sensitivity."""
        return {
            "kind": self.kind,
            "unit": self.budget.unit,
            "max_rows_per_unit": None,
            "sample_rate": 1.0,
            "noise_multiplier": self.noise_multiplier,
            "max_grad_norm": 1.0,
            "batch_size": self.num_units,
            "num_units": self.num_units,
            "planned_steps": planned_steps,
            "data_fingerprint": data_fingerprint,
        }
