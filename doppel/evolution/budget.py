"""The noise of several rounds of votes, and whether votes will show above it; told before anything is spent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from doppel.evolution.votes import NoisyVotes
from doppel.privacy.accounting import DPMechanism, Mechanism, calibrate_noise_multiplier
from doppel.privacy.gdp import mu_of
from doppel.privacy.histogram import NoisyHistogram
from doppel.privacy.ledger import Ledger
from doppel.privacy.spec import DPPlan, PrivacyArguments
from doppel.text.unexpected import NoisyWords

#: What the ledger calls a round of votes.
STAGE = "votes"
#: Average votes over their noise from which which candidates are chosen is more than chance: most votes fall on few.
CLEAR = 1.0


def plan_votes(
    privacy: PrivacyArguments, num_units: int, rounds: int, unit: str, beside: Sequence[Mechanism] = ()
) -> DPPlan:
    """Plan all rounds, whose noise is calibrated once.

    Formal guarantees:
        A round is a Gaussian release of sensitivity 1 without subsampling
        (:class:`~doppel.evolution.votes.NearestNeighbourHistogram`), so it is 1/σ-GDP. T rounds beside further Gaussian
        releases, of noise multipliers s, are √(T/σ² + Σ 1/s²)-GDP together, exactly (Dong, Roth and Su, 2022, corollary
        3.3). So σ = √(T / (μ² - Σ 1/s²)) for the μ of (ε, δ). Where something beside is no plain Gaussian release,
        where the ledger's accountant finds more than ε by its rounding, or where another one was asked for, σ is what
        that accountant calibrates.

    Args:
        privacy: ε, δ and accountant; with ``histogram_noise_multiplier``, ``histogram_share`` or
            ``words_noise_multiplier``, further releases in the budget.
        num_units: N.
        rounds: T.
        unit: What is protected.
        beside: What else the budget pays for, such as rows of attributes that it has paid for already.

    Returns:
        The plan: q = 1, sensitivity 1, T planned steps.

    Raises:
        CalibrationError: No noise keeps the ε.
    """
    draft = privacy.plan_releases(num_units, unit, 1.0, rounds)
    draft = replace(
        draft,
        histogram_noise_multiplier=privacy.histogram_noise(num_units),
        words_noise_multiplier=privacy.words_noise(num_units),
    )
    beside = [*beside, *draft.releases]
    left = mu_of(draft.budget.target_epsilon, draft.budget.delta) ** 2
    left -= sum(mechanism.steps / mechanism.noise_multiplier**2 for mechanism in beside)
    if draft.budget.accountant == "pld" and left > 0 and all(mechanism.sample_rate == 1.0 for mechanism in beside):
        exact = replace(draft, noise_multiplier=math.sqrt(rounds / left))
        if exact.budget.allows([*beside, NoisyVotes(exact.noise_multiplier, rounds)]):
            return exact

    def mechanisms_of(sigma: float) -> list[DPMechanism]:
        return [*beside, NoisyVotes(sigma, rounds)]

    budget = draft.budget
    sigma = calibrate_noise_multiplier(mechanisms_of, budget.target_epsilon, budget.delta, budget.accountant)
    return replace(draft, noise_multiplier=sigma)


def plan_beside(
    privacy: PrivacyArguments,
    num_units: int,
    rounds: int,
    unit: str,
    ledger: Ledger | None,
    planned: Sequence[Mechanism] = (),
) -> DPPlan:
    """Plan as :func:`plan_votes`, beside what the scope has spent on a ledger, such as rows of attributes.

    Args:
        privacy: ε, δ, accountant and scope.
        num_units: N.
        rounds: T.
        unit: What is protected.
        ledger: What pays; it may not be there yet, and no round of the scope is on it.
        planned: What the scope will pay before the votes and is not on the ledger.
    """
    if ledger is None or not ledger.exists():
        return plan_votes(privacy, num_units, rounds, unit, planned)
    spent = ledger.spent(privacy.scope)
    if any(record.kind == NoisyHistogram.kind for record in spent):
        privacy = replace(privacy, histogram_noise_multiplier=None, histogram_share=None)
    if any(record.kind == NoisyWords.kind for record in spent):
        privacy = replace(privacy, words_noise_multiplier=None)
    return plan_votes(privacy, num_units, rounds, unit, [*planned, *(record.mechanism() for record in spent)])


@dataclass(frozen=True)
class Outlook:
    """What the votes of a plan are worth.

    Attributes:
        num_units: N.
        pool: Candidates of a round.
        bins: What is voted for: candidates, or clusters of them.
        votes_each: k, of each unit.
        rounds: T.
        noise_multiplier: σ; None without privacy.
        plan: Of the budget; None without privacy.
        beside: What the budget will pay before the votes.
    """

    num_units: int
    pool: int
    bins: int
    votes_each: int
    rounds: int
    noise_multiplier: float | None
    plan: DPPlan | None = None
    beside: tuple[Mechanism, ...] = ()

    @property
    def votes(self) -> float:
        """Votes of a bin, on average."""
        return self.num_units * min(self.votes_each, self.bins) / self.bins

    @property
    def noise(self) -> float:
        """Standard deviation of the noise on the votes of a bin, σ√k."""
        return (self.noise_multiplier or 0.0) * math.sqrt(self.votes_each)

    @property
    def text(self) -> str:
        """Votes beside noise."""
        what = "candidate" if self.bins == self.pool else "cluster"
        noise = "no noise" if self.noise_multiplier is None else f"noise {self.noise:.2g}"
        return f"{self.rounds} rounds, {self.pool:,} candidates a round, {self.votes:.2g} votes a {what}, {noise}"

    @property
    def advice(self) -> str | None:
        """What to change where votes are below the noise; None where they are not."""
        if self.votes >= CLEAR * self.noise:
            return None
        fewer = next((t for t in range(self.rounds - 1, 0, -1) if self.votes >= self._clear(t)), None)
        clusters = int(self.num_units * math.sqrt(self.votes_each) / (CLEAR * (self.noise_multiplier or 1.0)))
        ways = [f"evolution.rounds={fewer}"] if fewer else []
        if 2 <= clusters < self.bins:
            ways.append(f"evolution.clusters={clusters}, so that clusters of candidates are voted for")
        return (
            f"votes are below the noise: {self.votes:.2g} on average under noise of {self.noise:.1f}, so that which "
            f"candidates are selected is mostly chance: give {', or '.join([*ways, 'a larger epsilon'])}"
        )

    def _clear(self, rounds: int) -> float:
        """Votes that would show above the noise of so many rounds."""
        return CLEAR * self.noise * math.sqrt(rounds / self.rounds)
