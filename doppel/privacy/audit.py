"""A lower bound on epsilon from one training run with canaries: what an attacker was seen to learn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import binom

GUESS_SHARES: tuple[float, ...] = (0.125, 0.25, 0.5, 1.0)
"""Shares of the canaries that are guessed about. Fixed and public: each is tried at its part of the error
probability (Bonferroni), so taking the best of them keeps the confidence."""

_BISECTIONS = 40
_MAX_EPSILON = 100.0


@dataclass(frozen=True)
class AuditResult:
    """What one audited run shows.

    Attributes:
        num_canaries: m, canaries that each took part in the training with probability 1/2.
        num_guesses: r, canaries about which the best try made a guess; it abstained from the others.
        num_correct: v, right guesses among them.
        epsilon_lower_bound: With probability `confidence` over coins and training, a training that is
            (epsilon, `delta`)-differentially private has at least this epsilon. 0 shows nothing.
        delta: The delta at which the bound holds.
        confidence: Of all tries together.
        num_tries: Numbers of guesses that were tried, each at error (1 - `confidence`) / `num_tries`.
    """

    num_canaries: int
    num_guesses: int
    num_correct: int
    epsilon_lower_bound: float
    delta: float
    confidence: float
    num_tries: int = 1

    def contradicts(self, claimed_epsilon: float) -> bool:
        """Return whether the run leaked more than `claimed_epsilon` at `delta` allows, at this confidence."""
        return self.epsilon_lower_bound > claimed_epsilon


def p_value(num_canaries: int, num_guesses: int, num_correct: int, epsilon: float, delta: float) -> float:
    """Return the largest probability of so many right guesses under any (epsilon, delta)-private training.

    Let m independent fair coins decide which canaries take part, and let r guesses be made from the output.
    With W ~ Binomial(r, e^epsilon / (1 + e^epsilon)), the number V of right guesses obeys

        P[V >= v]  <=  P[W >= v] + 2 m delta max_{1 <= i <= v} P[v - i <= W < v] / i:

    randomised response, and what delta can add (Steinke, Nasr, Jagielski, "Privacy Auditing with One (1) Training
    Run", 2023, Theorem 5.2 and Corollary 5.4).

    Args:
        num_canaries: m.
        num_guesses: r <= m, fixed before the scores were seen.
        num_correct: v <= r.
        epsilon: The epsilon in question, at least 0.
        delta: The delta in question, in [0, 1).

    Raises:
        ValueError: If a number is out of range.
    """
    _check(num_canaries, num_guesses, num_correct, delta)
    if not epsilon >= 0.0:
        raise ValueError(f"epsilon is {epsilon}: it must be at least 0")
    pmf = binom.pmf(np.arange(num_guesses + 1), num_guesses, expit(epsilon))
    v = num_correct
    tail = float(pmf[v:].sum())
    if v and delta:
        below = np.cumsum(pmf[:v][::-1])  # P[v - i <= W < v] for i = 1 … v
        tail += 2.0 * num_canaries * delta * float((below / np.arange(1, v + 1)).max())
    return min(tail, 1.0)


def epsilon_lower_bound(
    num_canaries: int, num_guesses: int, num_correct: int, delta: float, confidence: float = 0.95
) -> float:
    """Return an epsilon that the training exceeds, unless an event of probability 1 - `confidence` happened.

    Formal guarantees:
        If the training is (epsilon*, delta)-DP under adding or removing one canary's unit, the coins are fair and
        independent, and `num_guesses` does not depend on them, the result is at most epsilon* with probability at
        least `confidence`: its `p_value` is below 1 - confidence, and a training that is epsilon*-DP is so for every
        larger epsilon too, so that no epsilon above epsilon* is rejected but in an event of that probability.

    Args:
        num_canaries: m.
        num_guesses: r <= m, fixed before the scores were seen.
        num_correct: v <= r.
        delta: The delta of the claim.
        confidence: In (0, 1).

    Returns:
        The bound, to 1e-9, at most 100; 0 if the guesses are no better than chance could be.

    Raises:
        ValueError: If a number is out of range.
    """
    _check(num_canaries, num_guesses, num_correct, delta)
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence is {confidence}, not in (0, 1)")

    def rejected(epsilon: float) -> bool:
        return p_value(num_canaries, num_guesses, num_correct, epsilon, delta) < 1.0 - confidence

    if not rejected(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while rejected(high):
        if high >= _MAX_EPSILON:
            return _MAX_EPSILON
        low, high = high, min(2.0 * high, _MAX_EPSILON)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low


def audit_scores(
    scores: Sequence[float],
    included: Sequence[bool],
    delta: float,
    confidence: float = 0.95,
    guess_shares: Sequence[float] = GUESS_SHARES,
) -> AuditResult:
    """Guess from scores which canaries took part, and bound epsilon by how often that is right.

    For each share s, the s·m/2 canaries of highest score are guessed to have taken part and the s·m/2 of lowest
    score not to have; the best bound of all shares is returned. Equal scores are ordered by position, so the order
    of the canaries must not depend on the coins.

    Args:
        scores: One a canary, higher where the output speaks for its taking part; any function of the output.
        included: Coins: whether each canary took part.
        delta: The delta of the claim.
        confidence: Of the result, for all shares together.
        guess_shares: Shares in (0, 1], chosen before the scores were seen.

    Raises:
        ValueError: If the lengths differ, a score is not a number, or fewer than two canaries are given.
    """
    values: NDArray[np.float64] = np.asarray(scores, dtype=np.float64)
    truth: NDArray[np.bool_] = np.asarray(included, dtype=bool)
    num_canaries = len(values)
    if values.shape != truth.shape or num_canaries < 2:
        raise ValueError(f"{num_canaries} scores and {len(truth)} coins: give one of each for at least two canaries")
    if np.isnan(values).any():
        raise ValueError("a score is not a number: did the training diverge?")
    order = np.argsort(values, kind="stable")
    sides, each = _tries(num_canaries, confidence, guess_shares)
    results = []
    for side in sides:
        correct = int((~truth[order[:side]]).sum() + truth[order[num_canaries - side :]].sum())
        bound = epsilon_lower_bound(num_canaries, 2 * side, correct, delta, each)
        results.append(AuditResult(num_canaries, 2 * side, correct, bound, delta, confidence, len(sides)))
    return max(results, key=lambda result: (result.epsilon_lower_bound, result.num_guesses))


def largest_bound(
    num_canaries: int, delta: float, confidence: float = 0.95, guess_shares: Sequence[float] = GUESS_SHARES
) -> float:
    """Return what `audit_scores` would return if every guess were right: no claim above it can be contradicted.

    It grows like ln(m): about 3.8 for 200 canaries, 5.4 for 1,000, 7.7 for 10,000; less if 2·m·delta is not small.
    """
    sides, each = _tries(num_canaries, confidence, guess_shares)
    return max(epsilon_lower_bound(num_canaries, 2 * side, 2 * side, delta, each) for side in sides)


def _tries(num_canaries: int, confidence: float, guess_shares: Sequence[float]) -> tuple[list[int], float]:
    """Guesses on either side of each try, and the confidence of each."""
    if not guess_shares or any(not 0.0 < share <= 1.0 for share in guess_shares):
        raise ValueError(f"guess_shares are {guess_shares}: give numbers in (0, 1]")
    sides = sorted({max(1, int(share * num_canaries / 2)) for share in guess_shares})
    return sides, 1.0 - (1.0 - confidence) / len(sides)


def _check(num_canaries: int, num_guesses: int, num_correct: int, delta: float) -> None:
    if not 0 <= num_correct <= num_guesses <= num_canaries or num_guesses < 1:
        raise ValueError(
            f"{num_correct} right of {num_guesses} guesses about {num_canaries} canaries: these numbers must not grow"
        )
    if not 0.0 <= delta < 1.0:
        raise ValueError(f"delta is {delta}, not in [0, 1)")
