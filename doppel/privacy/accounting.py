"""Privacy accounting: what mechanisms cost together, and the noise with which they cost a given epsilon.

A mechanism says what it costs as an event of dp-accounting. Three accountants compose events, all upper bounds:

| name  | what                                                     | library       |
|-------|----------------------------------------------------------|---------------|
| `pld` | privacy loss distributions, pessimistic estimate         | dp-accounting |
| `rdp` | Rényi DP                                                 | dp-accounting |
| `prv` | numerical composition, upper end of its error interval   | Opacus        |

`pld` is the default: tight, composes unlike mechanisms, and bounds both directions of the add/remove relation. Most
papers used `rdp`; `prv` cross-checks, and needs the extra `opacus`. The central-limit ("GDP") formula is no bound.

Formal guarantees:
    Neighbouring data sets differ by adding or removing one *unit*. All bounds hold for adaptive composition: a step may
    depend on everything that was released before it, so optimiser state, schedules and a second model trained on the
    same data are covered. They need Poisson sampling, empty batches included: a shuffled run may not claim them.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, get_args

from doppel.errors import UserError

if TYPE_CHECKING:
    from dp_accounting import DpEvent

Accountant = Literal["pld", "prv", "rdp"]
ACCOUNTANTS: tuple[Accountant, ...] = get_args(Accountant)

#: The default is never larger: of few units 1/(N ln N) would be.
LARGEST_DELTA = 1e-5
#: Below it, `pld` and `prv` are at the mercy of rounding.
SMALLEST_DELTA = 1e-12
#: Calibration returns nothing beyond: at the least, epsilon is in the thousands; at the most, any signal has drowned.
MIN_NOISE_MULTIPLIER, MAX_NOISE_MULTIPLIER = 0.02, 1e4
#: Of more sampled steps the Rényi bound is returned: their losses are finer than a usual grid, and take minutes.
MAX_GRID_STEPS = {"pld": 1_000_000, "prv": 100_000}
#: Beyond it the Rényi bound is returned: a fine grid over such losses would fill the memory.
_HOPELESS_EPSILON = {"pld": 500.0, "prv": 100.0}
#: By which two accountants may differ: PRV states the upper end of an interval.
_SLACK = 0.02
#: Rényi orders: those of Opacus.
_ORDERS = (*(1 + x / 10 for x in range(1, 100)), *range(12, 64))
#: By which noise may differ, relatively, that two kinds of processors find for one budget: by 1e-10, as measured.
_ROUNDING = 1e-6


class CalibrationError(UserError):
    """A privacy request that cannot be met, or inputs that make no sense."""


class DPMechanism(Protocol):
    """What releases something of private data, as calibration, composition and the ledger see it: what it costs.

    A training is a :class:`Mechanism`, whose noise is added by :func:`~doppel.privacy.private_step.noisy_mean`; all
    else is a :class:`~doppel.privacy.release.Release`, which draws itself.
    """

    @property
    def kind(self) -> str:
        """What the ledger calls it."""

    @property
    def dp_event(self) -> DpEvent:
        """What all its releases cost."""


@dataclass(frozen=True)
class Mechanism:
    """`steps` releases of a Poisson-subsampled Gaussian sum.

    Formal guarantees:
        A step includes every unit independently with probability q, sums the units' vectors after clipping each to norm
        C, and adds N(0, (sigma C)^2 I). One unit moves the sum by at most C, so a step is the Poisson-subsampled
        Gaussian mechanism of noise multiplier sigma. Dividing by the *expected* batch size, which is public, is
        post-processing; dividing by the realised size would not be.

    Attributes:
        sample_rate: Probability q with which each unit joins a step, in (0, 1]; 1 is the plain Gaussian mechanism.
        noise_multiplier: Noise standard deviation over the sensitivity (sigma), at least 0; 0 gives no privacy.
        steps: Number of releases, at least 0.
    """

    sample_rate: float
    noise_multiplier: float
    steps: int
    kind: ClassVar[str] = "poisson_subsampled_gaussian"

    def __post_init__(self) -> None:
        """Refuse values outside their ranges."""
        if not 0.0 < self.sample_rate <= 1.0:
            raise CalibrationError(f"sample_rate is {self.sample_rate}, not in (0, 1]: give B/N.")
        if not 0.0 <= self.noise_multiplier < math.inf:
            raise CalibrationError(f"noise_multiplier is {self.noise_multiplier}: give a finite number >= 0.")
        if self.steps < 0 or self.steps != int(self.steps):
            raise CalibrationError(f"steps is {self.steps}: give a whole number >= 0.")

    @property
    def dp_event(self) -> DpEvent:
        """The steps, composed."""
        from dp_accounting import dp_event

        step: DpEvent = dp_event.GaussianDpEvent(self.noise_multiplier)
        if self.sample_rate < 1.0:
            step = dp_event.PoissonSampledDpEvent(self.sample_rate, step)
        return dp_event.SelfComposedDpEvent(step, int(self.steps))


def is_same_noise(one: float | None, other: float | None) -> bool:
    """Whether two noise multipliers, or δ, are one but for the rounding of the processors that computed them."""
    return one == other or (one is not None and other is not None and math.isclose(one, other, rel_tol=_ROUNDING))


def default_delta(num_units: int) -> float:
    """Return the default delta of N units, at least 2: 1/(N ln N), and at most :data:`LARGEST_DELTA`.

    Raises:
        CalibrationError: `num_units` is below 2.
    """
    _check_num_units(num_units)
    return min(1.0 / (num_units * math.log(num_units)), LARGEST_DELTA)


def poisson_rate(num_units: int, batch_size: int) -> float:
    """Return q = B/N, with which each of N units joins a step of B expected units.

    Raises:
        CalibrationError: If no step can be such a sample.
    """
    _check_num_units(num_units)
    if batch_size < 1:
        raise CalibrationError(f"batch_size is {batch_size}: give the expected number of units per step, at least 1.")
    if batch_size > num_units:
        raise CalibrationError(
            f"batch_size {batch_size} is larger than num_units {num_units}: a step samples each unit at most once, "
            f"so lower the batch size to at most {num_units}."
        )
    return batch_size / num_units


def check_terms(target_epsilon: float, delta: float, accountant: str) -> None:
    """Raise a CalibrationError for an (epsilon, delta) that promises nothing, or an unknown accountant."""
    if not 0.0 < target_epsilon < math.inf:
        raise CalibrationError(
            f"target_epsilon is {target_epsilon}: give a finite number above 0 (no DP for infinity)."
        )
    _check_bound(delta, accountant)


def compute_epsilon(mechanisms: Iterable[DPMechanism], delta: float, accountant: Accountant = "pld") -> float:
    """Return the epsilon of all mechanisms composed on the same data.

    Args:
        mechanisms: Their order does not matter, nor how their steps are split.
        delta: Failure probability, in (0, 1).
        accountant: Which bound to compute.

    Returns:
        An upper bound; 0 if nothing was released, infinity if a mechanism adds no noise. Beyond any use (above 500 for
        `pld`, 100 for `prv`), or of more sampled steps than `MAX_GRID_STEPS`, it is the Rényi bound, which is looser.

    Raises:
        CalibrationError: If `delta` or `accountant` is not valid, or the accountant cannot resolve the request.
    """
    _check_bound(delta, accountant)
    counts = Counter[Any]()
    for mechanism in mechanisms:
        for step, count in _steps(mechanism.dp_event):
            counts[step] += count
    return _epsilon(tuple(sorted((+counts).items(), key=repr)), delta, accountant)


def _steps(event: Any, count: int = 1) -> Iterator[tuple[DpEvent, int]]:
    """The events that an event is composed of, and how often."""
    from dp_accounting import dp_event

    if isinstance(event, dp_event.SelfComposedDpEvent):
        yield from _steps(event.event, count * event.count)
    elif isinstance(event, dp_event.ComposedDpEvent):
        for part in event.events:
            yield from _steps(part, count)
    else:
        yield event, count


def plain_mu_squared(mechanisms: Iterable[DPMechanism]) -> float | None:
    """Return μ² of mechanisms that are Gaussian ones of sensitivity 1 without subsampling; None where one is not."""
    from dp_accounting import dp_event

    parts = [part for mechanism in mechanisms for part in _steps(mechanism.dp_event)]
    if not all(isinstance(event, dp_event.GaussianDpEvent) for event, _ in parts):
        return None
    return sum(count / event.noise_multiplier**2 for event, count in parts)


def mu_of(epsilon: float, delta: float) -> float:
    """Return the largest μ whose mechanisms are (ε, δ)-DP, exactly (Balle and Wang, 2018).

    Raises:
        CalibrationError: ε is not positive, or δ is not in (0, 1).
    """
    if not (0.0 < epsilon < math.inf and 0.0 < delta < 1.0):
        raise CalibrationError(f"epsilon is {epsilon} and delta {delta}: give an epsilon above 0 and a delta in (0, 1)")
    from dp_accounting import get_sigma_gaussian

    return (1 - 1e-10) / get_sigma_gaussian(epsilon, delta)  # so that no accountant finds more than epsilon


@functools.lru_cache(maxsize=4096)  # the runs of one setting need one accounting between them
def _epsilon(steps: tuple[tuple[Any, int], ...], delta: float, accountant: Accountant) -> float:
    from dp_accounting import ComposedDpEvent, GaussianDpEvent, SelfComposedDpEvent, get_epsilon_gaussian
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import compute_epsilon as compute_epsilon_of_rdp

    if not steps:
        return 0.0
    composed = ComposedDpEvent([SelfComposedDpEvent(step, count) for step, count in steps])
    num_sampled = sum(count for step, count in steps if not isinstance(step, GaussianDpEvent))
    with _quiet():
        divergences = sum(count * _renyi_divergences(step) for step, count in steps)
        renyi = float(compute_epsilon_of_rdp(_ORDERS, divergences, delta)[0])
        renyi = math.inf if math.isnan(renyi) else renyi
        if accountant == "rdp" or renyi > _HOPELESS_EPSILON[accountant] or num_sampled > MAX_GRID_STEPS[accountant]:
            return renyi
        if accountant == "prv":
            return _prv_epsilon(steps, delta, renyi)
        if not num_sampled:  # plain Gaussians are one Gaussian, whose epsilon is exact
            mu_squared = sum(count / step.noise_multiplier**2 for step, count in steps)
            return float(get_epsilon_gaussian(1.0 / math.sqrt(mu_squared), delta))
        # Rounding T steps to a grid of interval h costs about T h^2 (measured): some 1e-4 of epsilon.
        interval = min(1e-3, max(1e-4, math.sqrt(1e-4 * renyi / num_sampled)))
        return float(PLDAccountant(value_discretization_interval=interval).compose(composed).get_epsilon(delta))


@functools.lru_cache(maxsize=4096)  # it takes longer than all else, and how often a step is taken is a factor
def _renyi_divergences(step: Any) -> Any:
    """Of one step, by order."""
    from dp_accounting.rdp import RdpAccountant

    return RdpAccountant(_ORDERS).compose(step).rdp


def _prv_epsilon(steps: Sequence[tuple[Any, int]], delta: float, renyi: float) -> float:
    """Upper end of the interval of Gopi, Lee and Wutschitz (2021), at most 1e-2 above the estimate."""
    if not has_opacus():
        raise CalibrationError("the prv accountant is Opacus's: pip install 'doppel[opacus]', or take pld.")
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    for step, count in steps:
        sampled = isinstance(step, PoissonSampledDpEvent)
        release, rate = (step.event, step.sampling_probability) if sampled else (step, 1.0)
        if not isinstance(release, GaussianDpEvent):
            raise CalibrationError(f"the prv accountant knows Gaussian noise alone, not {release}: take pld.")
        accountant.history.append((release.noise_multiplier, rate, count))
    try:
        return float(accountant.get_epsilon(delta, eps_error=min(1e-2, max(1e-3, 1e-2 * renyi))))
    except (RuntimeError, ValueError) as error:
        raise CalibrationError(
            f"the prv accountant cannot resolve delta {delta:.3g} for {len(steps)} mechanism(s): take pld."
        ) from error


def has_opacus() -> bool:
    """Return whether Opacus is installed, whose accountant `prv` is."""
    return find_spec("opacus") is not None


def cross_check(
    mechanisms: Sequence[DPMechanism], delta: float, accountant: Accountant = "pld"
) -> tuple[dict[str, float], str | None]:
    """Return epsilon by an accountant and by a second one, and how they contradict each other, or None.

    The second one is `prv` beside `pld`, and `pld` beside the others. Without Opacus it is `rdp` beside `pld`: a bound
    of another theory, which `pld` never passes.

    Raises:
        CalibrationError: The first accountant is not installed, or cannot resolve the request.
    """
    second: Accountant = "pld" if accountant != "pld" else "prv" if has_opacus() else "rdp"
    found: dict[str, float] = {accountant: compute_epsilon(mechanisms, delta, accountant)}
    try:
        found[second] = compute_epsilon(mechanisms, delta, second)
    except CalibrationError as error:
        return found, str(error)
    larger, smaller = (accountant, second) if second != "rdp" else (second, accountant)
    if found[smaller] > found[larger] * (1 + _SLACK):
        return found, f"{smaller} finds ε = {found[smaller]:.4g}, {larger} {found[larger]:.4g}: one is wrong"
    return found, None


def calibrate_noise_multiplier(
    mechanisms_of: Callable[[float], Sequence[DPMechanism]],
    target_epsilon: float,
    delta: float,
    accountant: Accountant = "pld",
) -> float:
    """Return the smallest noise multiplier (to 1e-4) at which mechanisms together cost at most `target_epsilon`.

    Args:
        mechanisms_of: All that is released, for a sigma: the stages that share it, and what has a noise of its own.
        target_epsilon: Budget, above 0.
        delta: Failure probability, in (0, 1).
        accountant: Which bound must hold; `compute_epsilon` at the result never exceeds the target.

    Raises:
        CalibrationError: If an input is not valid, or no sigma up to `MAX_NOISE_MULTIPLIER` is enough.
    """
    from dp_accounting import LowerEndpointAndGuess, calibrate_dp_mechanism

    check_terms(target_epsilon, delta, accountant)
    if compute_epsilon(mechanisms_of(MAX_NOISE_MULTIPLIER), delta, accountant) > target_epsilon:
        hint = ", or take the pld accountant, which is tighter" if accountant != "pld" else ""
        raise CalibrationError(
            f"no noise multiplier up to {MAX_NOISE_MULTIPLIER:g} reaches epsilon {target_epsilon:g} at delta "
            f"{delta:.3g} with the {accountant} accountant: raise the target epsilon or delta, plan fewer epochs, give "
            f"what is released beside them more noise{hint}."
        )
    if compute_epsilon(mechanisms_of(MIN_NOISE_MULTIPLIER), delta, accountant) <= target_epsilon:
        return MIN_NOISE_MULTIPLIER
    bracket = LowerEndpointAndGuess(MIN_NOISE_MULTIPLIER, 1.0)
    make = functools.partial(_ForCalibration, accountant)
    return float(calibrate_dp_mechanism(make, mechanisms_of, target_epsilon, delta, bracket, tol=1e-4))


class _ForCalibration:
    """`compute_epsilon` as dp-accounting's calibration wants it: a new accountant for each try."""

    def __init__(self, accountant: Accountant) -> None:
        from dp_accounting import NoOpDpEvent

        self._accountant = accountant
        self._mechanisms: Sequence[DPMechanism] = ()
        self.ledger = NoOpDpEvent()

    def compose(self, mechanisms: Sequence[DPMechanism]) -> _ForCalibration:
        """Take what is released."""
        self._mechanisms = mechanisms
        return self

    def get_epsilon(self, target_delta: float) -> float:
        """What it costs."""
        return compute_epsilon(self._mechanisms, target_delta, self._accountant)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the libraries' numerical chatter (orders left out, overflow of hopeless candidates)."""
    import numpy as np

    chatter = logging.getLogger("absl")  # of dp-accounting, which is imported by now
    level = chatter.level
    chatter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            yield
    finally:
        chatter.setLevel(level)


def _check_bound(delta: float, accountant: str) -> None:
    if not 0.0 < delta < 1.0:
        raise CalibrationError(
            f"delta is {delta}, not in (0, 1): leave it out for min(1/(N ln N), {LARGEST_DELTA:g}), or give a number "
            "below 1/N."
        )
    if accountant not in ACCOUNTANTS:
        raise CalibrationError(f"accountant is {accountant!r}: choose one of {', '.join(ACCOUNTANTS)}.")
    if delta < SMALLEST_DELTA and accountant != "rdp":
        raise CalibrationError(
            f"delta {delta:.3g} is below what the {accountant} accountant resolves: give {SMALLEST_DELTA:g} or more, "
            "or take accountant rdp."
        )


def _check_num_units(num_units: int) -> None:
    if num_units < 2:
        raise CalibrationError(f"num_units is {num_units}: a private data set needs at least 2 units.")
