"""The noise of several rounds of votes, and whether votes will show above it; told before anything is spent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from doppel.evolution.votes import NoisyVotes
from doppel.privacy.accounting import Mechanism
from doppel.privacy.ledger import Ledger
from doppel.privacy.plan import ReleasePlan, calibrate
from doppel.privacy.release import NoisyHistogram
from doppel.privacy.spec import PrivacyArguments
from doppel.text.unexpected import NoisyWords

#: What the ledger calls a round of votes.
STAGE = "votes"
#: Average votes over their noise from which which candidates are chosen is more than chance: most votes fall on few.
CLEAR = 1.0


def plan_votes(
    privacy: PrivacyArguments,
    num_units: int,
    rounds: int,
    unit: str,
    ledger: Ledger | None = None,
    planned: Sequence[Mechanism] = (),
) -> ReleasePlan:
    """Plan all rounds, whose noise is calibrated once, beside what their scope has spent on a ledger.

    Formal guarantees:
        A round is a Gaussian release of sensitivity 1 without subsampling
        (:class:`~doppel.evolution.votes.NearestNeighbourHistogram`). What is on file keeps its σ.

    Args:
        privacy: ε, δ, accountant and scope; with ``histogram_noise_multiplier``, ``histogram_share`` or
            ``words_noise_multiplier``, further releases in the budget.
        num_units: N.
        rounds: T.
        unit: What is protected.
        ledger: What pays; it may not be there yet.
        planned: What the scope will pay before the votes and is not on the ledger.

    Returns:
        The plan: q = 1, sensitivity 1, T planned steps.

    Raises:
        CalibrationError: No noise keeps the ε.
    """
    spent = ledger.spent(privacy.scope) if ledger is not None and ledger.exists() else []
    kinds = {record.kind for record in spent}
    noises = {NoisyHistogram.kind: privacy.histogram_noise(num_units), NoisyWords.kind: privacy.words_noise(num_units)}
    beside = [Mechanism(1.0, own, 1) for kind, own in noises.items() if own is not None and kind not in kinds]
    on_file = next((record.key[1] for record in spent if record.stage == STAGE), None)
    known = [*planned, *(record.mechanism() for record in spent if on_file is None), *beside]
    sigma = calibrate(privacy.budget(num_units, unit), known, lambda sigma: [NoisyVotes(sigma, rounds)])
    return privacy.plan_release(NoisyVotes.kind, num_units, unit, on_file or sigma, rounds, tuple(beside))


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
    plan: ReleasePlan | None = None
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
