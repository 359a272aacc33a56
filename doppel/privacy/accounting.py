"""Privacy accounting of Poisson-subsampled Gaussian mechanisms: epsilon, calibration.

Three accountants, all upper bounds:

| name  | what                                                     | library       |
|-------|----------------------------------------------------------|---------------|
| `pld` | privacy loss distributions, pessimistic estimate         | dp-accounting |
| `prv` | numerical composition, upper end of its error interval   | Opacus        |
| `rdp` | Rényi DP at Opacus's default orders                      | Opacus        |

`pld` is the default: tight, composes unlike mechanisms, bounds both directions of the add/remove relation,
and needs no PyTorch. `prv` is the cross-check and `rdp` the one that most papers used; both need the extra
`opacus`, so that a name means the same number everywhere. The central-limit ("GDP") approximation is no bound and
therefore not offered.

Formal guarantees:
    Two data sets are neighbours when one is the other plus one *unit*. A `Mechanism` (q, sigma, k) is k
    steps, each of which includes every unit independently with probability q, sums the units' vectors after
    clipping each to norm C, and adds N(0, (sigma C)^2 I) to the sum. Adding one unit moves that sum by at
    most C, so a step is the Poisson-subsampled Gaussian mechanism with noise multiplier sigma. Dividing by
    the *expected* batch size is post-processing, since that number is public; dividing by the realised size
    would not be. Composition is adaptive: a step may depend on everything released before it, so optimiser
    state, schedules and a second model trained on the same data are covered. The bound needs Poisson sampling
    (empty batches count); a shuffled run may not claim it. With q = 1 a mechanism is k plain Gaussian
    releases.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Literal, get_args

from doppel.privacy._accountants import (
    guide_epsilon,
    has_opacus,
    optimistic_epsilon,
    pld_epsilon,
    prv_epsilon,
    rdp_epsilon,
)
from doppel.privacy.mechanism import CalibrationError, Mechanism

Accountant = Literal["pld", "prv", "rdp"]
ACCOUNTANTS: tuple[Accountant, ...] = get_args(Accountant)

LARGEST_DELTA = 1e-5
"""The default is never larger: of few units 1/(N ln N) would be."""
MAX_NOISE_MULTIPLIER = 1e4
"""Calibration gives up here: an average of clipped gradients is long drowned."""
MIN_NOISE_MULTIPLIER = 0.02
"""Calibration never returns less: there, epsilon is in the thousands."""

_RENYI, _OPTIMISTIC = "rdp of dp-accounting", "optimistic pld"
_SLACK = 0.02  # by which two accountants may differ: PRV states the upper end of an interval
_TOLERANCE = 5e-4  # of sigma; below the 1e-3 that the literature bisects to
# Beyond these the Rényi bound is returned: a fine grid over such losses would fill the memory.
_HOPELESS_EPSILON = {"pld": 500.0, "prv": 100.0}
MAX_GRID_STEPS = {"pld": 1_000_000, "prv": 100_000}
"""Of more steps the Rényi bound is returned too: their losses are finer than a usual grid, and take minutes."""


def default_delta(num_units: int) -> float:
    """The default delta of N units, at least 2: 1/(N ln N), and at most :data:`LARGEST_DELTA`.

    Raises:
        CalibrationError: If `num_units` is below 2.
    """
    _check_num_units(num_units)
    return min(1.0 / (num_units * math.log(num_units)), LARGEST_DELTA)


def poisson_rate(num_units: int, batch_size: int) -> float:
    """q = B/N, with which each of N units joins a step of B expected units.

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
    """Refuse an (epsilon, delta) that promises nothing, or an unknown accountant.

    Raises:
        CalibrationError: One is out of its range.
    """
    if not 0.0 < target_epsilon < math.inf:
        raise CalibrationError(
            f"target_epsilon is {target_epsilon}: give a finite number above 0 (drop DP for infinity)."
        )
    _check_bound(delta, accountant)


def compute_epsilon(
    mechanisms: Sequence[Mechanism], delta: float, accountant: Accountant = "pld", fast: bool = False
) -> float:
    """The epsilon of all mechanisms composed on the same data.

    Args:
        mechanisms: Mechanisms with any mixture of sample rates and noise multipliers; their order does not
            matter.
        delta: Failure probability, in (0, 1).
        accountant: Which bound to compute.
        fast: For `pld`, a grid ten times coarser: still an upper bound, in a tenth of the time.

    Returns:
        An upper bound on epsilon; 0 if nothing was released, infinity if a mechanism adds no noise. Where the
        bound is beyond any use (above 500 for `pld`, 100 for `prv`), or of more sampled steps than
        `MAX_GRID_STEPS`, it is the Rényi bound, which is valid but looser.

    Raises:
        CalibrationError: If `delta` or `accountant` is not valid, or the accountant cannot resolve the
            request.
    """
    _check_bound(delta, accountant)
    return _epsilon(tuple(_merge(mechanisms)), delta, accountant, fast)


@functools.lru_cache(maxsize=4096)  # the runs of one setting need one accounting between them
def _epsilon(merged: tuple[Mechanism, ...], delta: float, accountant: Accountant, fast: bool) -> float:
    if not merged:
        return 0.0
    if any(mechanism.noise_multiplier == 0.0 for mechanism in merged):
        return math.inf
    if accountant == "rdp":
        return rdp_epsilon(merged, delta)
    guide = guide_epsilon(merged, delta)
    num_sampled = sum(mechanism.steps for mechanism in merged if mechanism.sample_rate < 1.0)
    if guide > _HOPELESS_EPSILON[accountant] or num_sampled > MAX_GRID_STEPS[accountant]:
        return guide
    if accountant == "prv":
        try:
            return prv_epsilon(merged, delta, guide)
        except (RuntimeError, ValueError) as error:
            raise CalibrationError(
                f"the prv accountant cannot resolve delta {delta:.3g} for {len(merged)} mechanism(s): take pld."
            ) from error
    return pld_epsilon(merged, delta, guide, coarsen=10.0 if fast else 1.0)


def cross_check(
    mechanisms: Sequence[Mechanism], delta: float, accountant: Accountant = "pld"
) -> tuple[dict[str, float], str | None]:
    """Epsilon by an accountant and by a second one, and how they contradict each other.

    The second one is another library's: `prv` beside `pld`, `pld` beside the others. Without Opacus, `pld` is
    compared with the bounds of dp-accounting on either side: its optimistic estimate from below (the same library, so
    an error in its privacy losses stays unseen) and its Rényi accountant from above (another theory and other code).

    Args:
        mechanisms: As of `compute_epsilon`.
        delta: Failure probability, in (0, 1).
        accountant: The first one.

    Returns:
        Epsilon by each accountant, the first one first; what is wrong between them or with the second, or None.

    Raises:
        CalibrationError: The first accountant is not installed, or cannot resolve the request.
    """
    first = compute_epsilon(mechanisms, delta, accountant)
    if accountant == "pld" and not has_opacus():
        return _enclosed(first, _merge(mechanisms), delta)
    second: Accountant = "prv" if accountant == "pld" else "pld"
    try:
        other = compute_epsilon(mechanisms, delta, second)
    except CalibrationError as error:
        return {accountant: first}, str(error)
    if other > first * (1 + _SLACK):
        text = f"{second} finds ε = {other:.4g}, {accountant} {first:.4g}: one is wrong"
        return {accountant: first, second: other}, text
    return {accountant: first, second: other}, None


def _enclosed(pld: float, merged: Sequence[Mechanism], delta: float) -> tuple[dict[str, float], str | None]:
    """As :func:`cross_check`, by dp-accounting alone."""
    if not 0.0 < pld < _HOPELESS_EPSILON["pld"]:
        return {"pld": pld}, None
    rdp = guide_epsilon(merged, delta)
    found = {"pld": pld, _RENYI: rdp}
    if sum(mechanism.steps for mechanism in merged) <= MAX_GRID_STEPS["pld"]:
        found[_OPTIMISTIC] = optimistic_epsilon(merged, delta, rdp)
    if found.get(_OPTIMISTIC, 0.0) > pld:
        return found, f"the {_OPTIMISTIC} finds ε = {found[_OPTIMISTIC]:.4g}, pld {pld:.4g}: one is wrong"
    if pld > rdp * (1 + _SLACK) + _SLACK:
        return found, f"pld finds ε = {pld:.4g}, the {_RENYI} {rdp:.4g}: one is wrong"
    return found, None


def calibrate_noise_multiplier(
    target_epsilon: float,
    delta: float,
    schedule: Sequence[tuple[float, int]],
    accountant: Accountant = "pld",
    beside: Sequence[Mechanism] = (),
) -> float:
    """The smallest noise multiplier (to 0.1 %) at which the whole schedule costs at most `target_epsilon`.

    A cheap Rényi bound brackets sigma, a coarse run of the accountant narrows it, and the accountant itself
    settles it: about a second for a usual plan (`dp_accounting.calibrate_dp_mechanism` knows one grid alone and takes
    several times as long). The upper end of the last bracket is returned, so `compute_epsilon` at the result never
    exceeds the target.

    Args:
        target_epsilon: Budget, above 0.
        delta: Failure probability, in (0, 1).
        schedule: Pairs (sample rate, steps), one per stage; all stages share the one sigma.
        accountant: Which bound must hold.
        beside: Mechanisms of the same budget whose noise is fixed, such as a histogram; they are composed with the
            schedule.

    Returns:
        sigma, the noise standard deviation over the clipping norm.

    Raises:
        CalibrationError: If an input is not valid, `beside` alone costs the target, or no sigma up to
            `MAX_NOISE_MULTIPLIER` is enough.
    """
    check_terms(target_epsilon, delta, accountant)
    if sum(steps for _, steps in schedule) < 1:
        raise CalibrationError("the schedule has no steps: plan at least one step.")

    if beside and (alone := compute_epsilon(beside, delta, accountant)) >= target_epsilon:
        raise CalibrationError(
            f"what is released beside the training costs epsilon {alone:.3g} of a target of {target_epsilon:g}: give "
            "it more noise, or raise the target."
        )

    def at(sigma: float) -> list[Mechanism]:
        return _merge([*beside, *(Mechanism(rate, sigma, steps) for rate, steps in schedule)])

    guide = functools.partial(guide_epsilon, delta=delta)
    renyi = sigma = _search(lambda s: guide(at(s)), target_epsilon, start=1.0, factor=2.0, tolerance=0.02)
    if sigma is None:  # Rényi bounds end above some small epsilons; start where other bounds are cheap
        sigma, stride, final_stride = MAX_NOISE_MULTIPLIER, 2.0, 2.0
    else:
        stride, final_stride = 1.05, 1.0 + 0.9 * _TOLERANCE
    if accountant != "rdp":
        coarse = functools.partial(compute_epsilon, delta=delta, fast=True)
        sigma = _search(lambda s: coarse(at(s)), target_epsilon, sigma, stride) or sigma
        epsilon = compute_epsilon(at(sigma), delta, accountant)
        if (1.0 - 5.0 * _TOLERANCE) * target_epsilon <= epsilon <= target_epsilon:
            return sigma  # the usual case: one fine evaluation confirms what the coarse ones found
    fine = functools.partial(compute_epsilon, delta=delta, accountant=accountant)
    settled = _search(lambda s: fine(at(s)), target_epsilon, sigma, final_stride)
    if renyi is not None and accountant != "rdp" and (settled is None or settled > 1.1 * renyi):
        raise CalibrationError(
            f"delta {delta:.3g} is below what the {accountant} accountant resolves: give 1e-12 or more, or "
            f"accountant rdp, which needs a noise multiplier of {renyi:.3g} there."
        )
    if settled is None:
        hint = " or take the pld accountant, which is tighter" if accountant != "pld" else ""
        raise CalibrationError(
            f"no noise multiplier up to {MAX_NOISE_MULTIPLIER:g} reaches epsilon {target_epsilon:g} at delta "
            f"{delta:.3g} over {sum(steps for _, steps in schedule)} steps with the {accountant} accountant: "
            f"raise the target epsilon or delta, plan fewer epochs{hint}."
        )
    return settled


def _search(
    epsilon_at: Callable[[float], float],
    target: float,
    start: float,
    factor: float,
    tolerance: float = _TOLERANCE,
) -> float | None:
    """Upper end of a bracket around the smallest sigma with `epsilon_at(sigma) <= target`, or None.

    Steps of growing `factor` from `start` find a bracket; interpolation on log-log axes, aimed a little to
    either side of the root so that both ends close in, shrinks it to `tolerance` (relative).
    """
    low = high = start
    epsilon_low = epsilon_high = epsilon_at(start)
    if epsilon_high <= target:
        while epsilon_low <= target:
            high, epsilon_high = low, epsilon_low
            low, factor = high / factor, min(factor**2, 2.0)
            if low < MIN_NOISE_MULTIPLIER:
                return high
            epsilon_low = epsilon_at(low)
    else:
        while epsilon_high > target:
            if high >= MAX_NOISE_MULTIPLIER:
                return None
            low, epsilon_low = high, epsilon_high
            high, factor = min(low * factor, MAX_NOISE_MULTIPLIER), factor**2
            epsilon_high = epsilon_at(high)
    aim_high = True
    for trial in itertools.count():
        if high - low <= tolerance * high:
            return high
        middle = math.sqrt(low * high)
        if trial < 8 and 0.0 < epsilon_high < epsilon_low < math.inf:
            share = math.log(epsilon_low / target) / math.log(epsilon_low / epsilon_high)
            root = low * (high / low) ** share
            aimed = root * (1.0 + (0.4 if aim_high else -0.4) * tolerance)
            middle = aimed if low < aimed < high else middle
        epsilon = epsilon_at(middle)
        if epsilon <= target:
            high, epsilon_high, aim_high = middle, epsilon, False
        else:
            low, epsilon_low, aim_high = middle, epsilon, True
    raise AssertionError("unreachable")


def _merge(mechanisms: Sequence[Mechanism]) -> list[Mechanism]:
    """Add up the steps of equal (q, sigma), in a fixed order, leaving out what took no step."""
    steps: dict[tuple[float, float], int] = {}
    for mechanism in mechanisms:
        key = (mechanism.sample_rate, mechanism.noise_multiplier)
        steps[key] = steps.get(key, 0) + int(mechanism.steps)
    return [Mechanism(rate, sigma, count) for (rate, sigma), count in sorted(steps.items()) if count > 0]


def _check_bound(delta: float, accountant: str) -> None:
    if not 0.0 < delta < 1.0:
        raise CalibrationError(
            f"delta is {delta}, not in (0, 1): leave it out for min(1/(N ln N), {LARGEST_DELTA:g}), or give a number "
            "below 1/N."
        )
    if accountant not in ACCOUNTANTS:
        raise CalibrationError(f"accountant is {accountant!r}: choose one of {', '.join(ACCOUNTANTS)}.")


def _check_num_units(num_units: int) -> None:
    if num_units < 2:
        raise CalibrationError(f"num_units is {num_units}: a private data set needs at least 2 units.")
