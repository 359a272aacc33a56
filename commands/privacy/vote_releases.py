"""The private side of an evolution: reads the private texts, pays for each round of votes, keeps what was released."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commands.privacy.evolution_settings import Evolution
from commands.privacy.stage_release import contents, declare
from datamodules.reading.example import Example
from datamodules.training_rows import TrainingRows
from doppel.errors import DataError, UserError
from doppel.evolution.budget import STAGE, plan_beside, plan_votes
from doppel.evolution.candidates import Candidate, fingerprint
from doppel.evolution.votes import NearestNeighbourHistogram, NoisyVotes
from doppel.privacy.histogram import NoisyHistogram, unit_sums
from doppel.privacy.ledger import Ledger
from doppel.privacy.spec import PrivacyArguments

#: Stage of the sizes of labels.
SIZES = "histogram"
#: Texts whose embeddings are held in floating point at a time.
_EMBEDDED_TOGETHER = 2**16
Embed = Callable[[Sequence[str]], NDArray[np.floating]]


class VoteReleases:
    """Noisy votes of private texts, each round paid for and drawn once: :class:`~doppel.evolution.evolve.VoteSource`.

    Formal guarantees:
        A round is one Gaussian release of sensitivity 1 (:class:`~doppel.evolution.votes.NearestNeighbourHistogram`)
        with noise from the operating system's entropy (:func:`~doppel.privacy.histogram.add_noise`). σ is calibrated
        for all rounds once; a step on file keeps its σ, and a schedule of another length is refused before anything is
        drawn. Exact votes stay in memory; noisy sums leave it in the ledger's line that pays for them, so a process
        killed at any moment has paid and released, or neither. A paid round is read again, never drawn twice; one whose
        line a crash tore is spent, and lost to the population. No text changes a bit of another's embedding
        (:meth:`doppel.models.encoders.TextFeaturizer.read`), nor of its vote.

    Args:
        turns: The private texts, see :func:`~commands.privacy.stage_release.read_private`.
        rows: Their file, unit, columns and selection.
        settings: How a round is voted.
        labels: Public labels among whose candidates their texts vote; None: labels do not matter.
        embed: Embeds texts, each independently of the others.
        ledger: What pays, see :meth:`open`; None: no noise, NOT PRIVATE, and nothing is written.
        privacy: Budget; None exactly where ``ledger`` is.

    Attributes:
        noise_multiplier: σ; None without privacy.
        rounds: Rounds of the population: those of the schedule, but for those that were lost.
        num_lost: Rounds that were spent and not kept.
    """

    def __init__(
        self,
        turns: Sequence[Example],
        rows: TrainingRows,
        settings: Evolution,
        labels: Sequence[str] | None,
        embed: Embed,
        ledger: Ledger | None,
        privacy: PrivacyArguments | None,
    ) -> None:
        self._turns, self._rows, self._settings, self._labels, self._embed = turns, rows, settings, labels, embed
        self._ledger, self._privacy = ledger, privacy
        self._unit, self._num_units = str(rows.unit), len({turn.unit for turn in turns})
        self._kept: list[dict[str, Any]] = []
        self._votes = ""
        self.noise_multiplier: float | None = None
        self.rounds, self.num_lost = settings.rounds, 0

    def open(self) -> None:
        """Declare the votes, or find those that an interrupted run has declared, and read what was released.

        Raises:
            UserError: Every round was lost.
        """
        ledger, privacy, rounds = self._ledger, self._privacy, self._settings.rounds
        if ledger is None or privacy is None:
            return
        known = ledger.mechanisms.get(ledger.mechanism_id(privacy.scope, STAGE))
        if known is None or not known.done_steps:
            spec = plan_beside(privacy, self._num_units, rounds, self._unit, ledger)
        else:
            spec = plan_votes(privacy, self._num_units, rounds, self._unit)
            spec = replace(spec, noise_multiplier=known.key[1])
        fingerprint = self._rows.fingerprint
        terms = (NoisyVotes, rounds, privacy.seed, privacy.total_epsilon)
        self._votes = declare(ledger, privacy.scope, STAGE, spec, fingerprint, *terms)
        self.noise_multiplier = spec.noise_multiplier
        released = contents(ledger, self._votes)
        self._kept = [*contents(ledger, ledger.mechanism_id(privacy.scope, SIZES)), *released]
        self.num_lost = ledger.mechanisms[self._votes].done_steps - len(released)
        self.rounds = rounds - self.num_lost
        if self.rounds < 1:
            raise UserError(
                "every round of votes was spent and lost, so that nothing can be chosen: "
                "give another RUN_DIR, which spends on top of what this one has spent",
                about=ledger.path,
            )

    def count(
        self, number: int, pool: Sequence[Candidate], bins_BD: NDArray[np.floating], labels: Sequence[str | None]
    ) -> list[float]:
        """Release the noisy votes of a round.

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
        votes_each = self._settings.votes_each
        sums = self._histogram.sums(bins_BD, None if self._labels is None else labels, votes_each)
        told = {**asked, "votes_each": votes_each}
        return _votes(self._release(told, sums, self._votes, self.noise_multiplier))

    def sizes(self) -> dict[str, float] | None:
        """Release the noisy numbers of units by label, once; equal ones where that release was lost."""
        if self._labels is None:
            return None
        own = next((record for record in self._kept if "labels" in record), None)
        if own is None:
            bins, mechanism, sigma, ledger, privacy = list(self._labels), "", None, self._ledger, self._privacy
            if ledger is not None and privacy is not None:
                spec, fingerprint = privacy.plan_histogram(self._num_units, self._unit), self._rows.fingerprint
                sigma, terms = spec.noise_multiplier, (NoisyHistogram, 1, privacy.seed, privacy.total_epsilon)
                mechanism = declare(ledger, privacy.scope, SIZES, spec, fingerprint, *terms)
                if ledger.mechanisms[mechanism].done_steps:
                    return dict.fromkeys(bins, 1.0)
            rows = ((turn.unit, {turn.label: 1.0} if turn.label else {}) for turn in self._turns)
            own = self._release({"labels": bins}, unit_sums(rows, bins), mechanism, sigma)
        return dict(zip(own["labels"], own["sums"], strict=True))

    def note(self, sha256: str) -> None:
        """Note the samples that are about to be written."""
        if self._ledger is not None:
            self._ledger.release(self._votes, sha256=sha256)

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
    def _histogram(self) -> NearestNeighbourHistogram:
        turns = self._turns
        parts = (
            self._embed([turn.utterance for turn in turns[start : start + _EMBEDDED_TOGETHER]])
            for start in range(0, len(turns), _EMBEDDED_TOGETHER)
        )
        labels = None if self._labels is None else [turn.label for turn in self._turns]
        return NearestNeighbourHistogram(parts, [turn.unit for turn in turns], labels)


def _votes(record: Mapping[str, Any]) -> list[float]:
    """Votes from sums, in which each of the k votes of a text weighs 1/√k."""
    return [sum_ * math.sqrt(record["votes_each"]) for sum_ in record["sums"]]
