"""The private side of an evolution: reads the private texts, pays for each round of votes, keeps what was released."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commands.privacy.stage_release import contents, declare, fingerprint_of, read_private
from doppel.errors import DataError, UserError
from doppel.evolution.budget import STAGE, plan_beside, plan_votes
from doppel.evolution.candidates import Candidate, fingerprint
from doppel.evolution.votes import Electorate, Nearness, NoisyVotes
from doppel.privacy.accounting import GaussianRelease
from doppel.privacy.histogram import NoisyHistogram, unit_sums
from doppel.privacy.ledger import Ledger
from doppel.privacy.spec import DPPlan, PrivacyArguments

#: Stage of the sizes of labels.
SIZES = "histogram"
Embed = Callable[[Sequence[str]], NDArray[np.floating]]


@dataclass(frozen=True)
class Poll:
    """How a round is voted.

    Attributes:
        rounds: T.
        votes_each: k.
        nearness: What near means.
        labels: Public labels among whose candidates their texts vote; None: labels do not matter.
    """

    rounds: int
    votes_each: int = 1
    nearness: Nearness = "cosine"
    labels: Sequence[str] | None = None


class Ballots:
    """Noisy votes of private texts, each round paid for and drawn once: :class:`~doppel.evolution.evolve.Polls`.

    Formal guarantees:
        A round is one Gaussian release of sensitivity 1 (:class:`~doppel.evolution.votes.Electorate`), its noise drawn
        by :func:`~doppel.privacy.histogram.add_noise` from the operating system's entropy. σ is calibrated for all
        rounds once; where a step is on file, it is the one that the file says, and a schedule of another length is
        refused before anything is drawn. Ballots and sums stay in the memory of this process. The noisy sums leave it
        in the line of the ledger that pays for them: a process that is killed at any moment has either paid and
        released, or neither. A round that was paid for is read again, and its noise is never drawn a second time. A
        round whose line was torn by a crash is spent, and lost to the population.

        Each text is embedded by itself, so that no rounding in a batch lets one unit change another's ballot.

    Args:
        ledger: What pays; None: no noise, NOT PRIVATE, and nothing is written.
        data: Arguments of the data module: file, unit, columns, selection.
        privacy: Budget; None exactly where ``ledger`` is.
        poll: How a round is voted.
        embed: Embeds texts, each by itself.

    Attributes:
        rounds: Rounds of the population: those of the schedule, but for those that were lost.
        num_lost: Rounds that were spent and not kept.
    """

    def __init__(
        self,
        ledger: Ledger | None,
        data: Mapping[str, Any],
        privacy: PrivacyArguments | None,
        poll: Poll,
        embed: Embed,
    ) -> None:
        self._ledger, self._privacy, self._poll, self._embed = ledger, privacy, poll, embed
        self._unit = str(data.get("unit") or "utterance")
        turns = read_private(data, needs_label=poll.labels is not None)
        self._turns = turns
        self.num_units = len({turn.unit for turn in turns})
        self._fingerprint = fingerprint_of(data)
        self._kept: list[dict[str, Any]] = []
        self.rounds, self.num_lost, self._votes = poll.rounds, 0, ""
        if ledger is not None and privacy is not None:
            self._open(ledger, privacy)

    @property
    def noise_multiplier(self) -> float | None:
        """σ; None without privacy."""
        return None if self._ledger is None else self._spec.noise_multiplier

    @property
    def steps(self) -> int:
        """Steps of votes that are spent."""
        return 0 if self._ledger is None else self._ledger.mechanisms[self._votes].done_steps

    def count(
        self, number: int, pool: Sequence[Candidate], bins_BD: NDArray[np.floating], labels: Sequence[str | None]
    ) -> list[float]:
        """Noisy votes of a round.

        Args:
            number: Of the round, from 1.
            pool: Its candidates, which tell it from other rounds.
            bins_BD: Embeddings of what is voted for.
            labels: Of what is voted for.

        Raises:
            DataError: The ledger has this round of another pool.
            BudgetExceededError: The budget does not afford it; nothing was counted.
        """
        asked = {"round": number, "pool": fingerprint(pool), "num_bins": len(bins_BD)}
        own = next((record for record in self._kept if record.get("round") == number), None)
        if own is not None:
            if any(own[name] != value for name, value in asked.items()):
                raise DataError(
                    f"it has votes of round {number} for other candidates: the generator, its answers or its prompts "
                    "changed since; restore them",
                    about=None if self._ledger is None else self._ledger.path,
                )
            return _votes(own)
        if self._ledger is not None and not self._ledger.remaining(self._votes):
            self._ledger.spend(self._votes)  # refuses and says why, before the texts are embedded in vain
        where = None if self._poll.labels is None else labels
        sums = self._electorate.sums(bins_BD, where, self._poll.votes_each, self._poll.nearness)
        told = {**asked, "votes_each": self._poll.votes_each}
        return _votes(self._release(told, sums, self._votes, self.noise_multiplier))

    def sizes(self) -> dict[str, float] | None:
        """Noisy numbers of units by label, released once; equal ones where that release was lost."""
        if self._poll.labels is None:
            return None
        own = next((record for record in self._kept if "labels" in record), None)
        if own is None:
            bins, mechanism, sigma = list(self._poll.labels), "", None
            if self._ledger is not None and self._privacy is not None:
                spec = self._privacy.plan_histogram(self.num_units, self._unit)
                mechanism, sigma = self._declare(self._ledger, SIZES, spec, 1, NoisyHistogram), spec.noise_multiplier
                if self._ledger.mechanisms[mechanism].done_steps:
                    return dict.fromkeys(bins, 1.0)
            rows = ((turn.unit, {turn.label: 1.0} if turn.label else {}) for turn in self._turns)
            own = self._release({"labels": bins}, unit_sums(rows, bins), mechanism, sigma)
        return dict(zip(own["labels"], own["sums"], strict=True))

    def note(self, sha256: str) -> None:
        """Note the samples that are about to be written."""
        if self._ledger is not None:
            self._ledger.release(self._votes, sha256=sha256)

    def _open(self, ledger: Ledger, privacy: PrivacyArguments) -> None:
        """Declare the votes, or find those that an interrupted run has declared, and read what was released."""
        known = ledger.mechanisms.get(ledger.mechanism_id(privacy.scope, STAGE))
        if known is None or not known.done_steps:
            self._spec = plan_beside(privacy, self.num_units, self._poll.rounds, self._unit, ledger)
        else:
            plan = plan_votes(privacy, self.num_units, self._poll.rounds, self._unit)
            self._spec = replace(plan, noise_multiplier=known.key[1])
        self._votes = self._declare(ledger, STAGE, self._spec, self._poll.rounds, NoisyVotes)
        sizes = ledger.mechanism_id(privacy.scope, SIZES)
        self._kept = [*contents(ledger, sizes), *contents(ledger, self._votes)]
        self.num_lost = self.steps - sum("round" in record for record in self._kept)
        self.rounds = self._poll.rounds - self.num_lost
        if self.rounds < 1:
            raise UserError(
                "every round of votes was spent and lost, so that nothing can be chosen: "
                "give another RUN_DIR, which spends on top of what this one has spent",
                about=ledger.path,
            )

    def _declare(self, ledger: Ledger, stage: str, spec: DPPlan, planned_steps: int, of: type[GaussianRelease]) -> str:
        assert self._privacy is not None
        scope, seed = self._privacy.scope, self._privacy.seed
        return declare(ledger, scope, stage, spec, self._fingerprint, of, planned_steps, seed)

    def _release(
        self, told: Mapping[str, Any], sums: Mapping[str, float], mechanism: str, sigma: float | None
    ) -> dict[str, Any]:
        """Sums with noise, paid for and kept; without privacy as they are, and kept nowhere."""
        if self._ledger is None or self._privacy is None or sigma is None:
            return {**told, "sums": list(sums.values())}
        seed = None if self._privacy.seed is None else self._privacy.seed + len(self._kept)
        noisy = NoisyVotes(sigma).release(sums, seed)
        record = {**told, "noise_multiplier": sigma, "sums": list(noisy.values())}
        self._ledger.spend(mechanism, record)
        self._kept.append(record)
        return record

    @cached_property
    def _electorate(self) -> Electorate:
        vectors = self._embed([turn.utterance for turn in self._turns])
        labels = None if self._poll.labels is None else [turn.label for turn in self._turns]
        return Electorate(vectors, [turn.unit for turn in self._turns], labels)


def _votes(record: Mapping[str, Any]) -> list[float]:
    """Votes from sums, in which each of the k votes of a text weighs 1/√k."""
    return [sum_ * math.sqrt(record["votes_each"]) for sum_ in record["sums"]]
