"""The private side of an evolution: reads the private texts, pays for each round of votes, keeps what was released."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commands.privacy.evolution_settings import Evolution
from datamodules.reading.example import Example
from datamodules.training_rows import TrainingRows
from doppel.errors import DataError, UserError
from doppel.evolution.budget import STAGE, plan_votes
from doppel.evolution.candidates import Candidate, fingerprint
from doppel.evolution.votes import NearestNeighbourHistogram, NoisyVotes
from doppel.privacy.histogram import unit_sums
from doppel.privacy.ledger import Ledger
from doppel.privacy.plan import ReleasePlan
from doppel.privacy.release import NoisyHistogram, NoisySums, contents, declare, once
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
        self._votes = ""
        self.noise_multiplier: float | None = None
        self.rounds, self.num_lost = settings.rounds, 0

    @property
    def has_paid(self) -> bool:
        """Whether a round, or the sizes of labels, was paid for."""
        ledger, privacy = self._ledger, self._privacy
        own = () if ledger is None or privacy is None else ledger.spent(privacy.scope)
        return any(record.stage in (SIZES, STAGE) for record in own)

    def open(self) -> None:
        """Declare the votes, or find those that an interrupted run has declared, and read what was released.

        Raises:
            UserError: Every round was lost.
        """
        ledger, privacy, rounds = self._ledger, self._privacy, self._settings.rounds
        if ledger is None or privacy is None:
            return
        plan = plan_votes(privacy, self._num_units, rounds, self._unit, ledger)
        self._votes = self._declare(ledger, privacy, STAGE, plan)
        self.noise_multiplier, released = plan.noise_multiplier, contents(ledger, self._votes)
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
        votes_each, labelled = self._settings.votes_each, None if self._labels is None else labels
        own = self._once(
            self._votes,
            NoisyVotes,
            self.noise_multiplier,
            {**asked, "votes_each": votes_each},
            lambda: self._histogram.sums(bins_BD, labelled, votes_each),
            number,
        )
        if own is None or any(own[name] != value for name, value in asked.items()):
            raise DataError(
                f"it has votes of round {number} for other candidates: the generator, its answers or its prompts "
                "changed since; restore them",
                about=None if self._ledger is None else self._ledger.path,
            )
        return [sum_ * math.sqrt(own["votes_each"]) for sum_ in own["sums"]]  # each of the k votes weighs 1/√k

    def sizes(self) -> dict[str, float] | None:
        """Release the noisy numbers of units by label, once; equal ones where that release was lost."""
        if self._labels is None:
            return None
        bins, mechanism, sigma, ledger, privacy = list(self._labels), "", None, self._ledger, self._privacy
        if ledger is not None and privacy is not None:
            sigma = privacy.histogram_noise(self._num_units)
            plan = privacy.plan_release(NoisyHistogram.kind, self._num_units, self._unit, sigma)
            mechanism = self._declare(ledger, privacy, SIZES, plan)

        rows = ((turn.unit, {turn.label: 1.0} if turn.label else {}) for turn in self._turns)
        own = self._once(mechanism, NoisyHistogram, sigma, {"labels": bins}, lambda: unit_sums(rows, bins))
        return dict.fromkeys(bins, 1.0) if own is None else dict(zip(own["labels"], own["sums"], strict=True))

    def note(self, sha256: str) -> None:
        """Note the samples that are about to be written."""
        if self._ledger is not None:
            self._ledger.release(self._votes, sha256=sha256)

    def _declare(self, ledger: Ledger, privacy: PrivacyArguments, stage: str, plan: ReleasePlan) -> str:
        rows, terms = self._rows, (privacy.seed, privacy.total_epsilon)
        return declare(ledger, privacy.scope, stage, plan, rows.fingerprint, *terms, rows.data_file)

    def _once(
        self,
        mechanism: str,
        kind: type[NoisySums],
        sigma: float | None,
        told: Mapping[str, Any],
        sums: Callable[[], Mapping[str, float]],
        number: int = 1,
    ) -> dict[str, Any] | None:
        """Sums with noise, drawn, paid for and kept once; without privacy as they are, and kept nowhere."""
        ledger, privacy = self._ledger, self._privacy
        if ledger is None or privacy is None or sigma is None:
            return {**told, "sums": list(sums().values())}
        ids = [ledger.mechanism_id(privacy.scope, stage) for stage in (SIZES, STAGE)]
        seed = None if privacy.seed is None else privacy.seed + sum(len(contents(ledger, own)) for own in ids)

        def draw() -> dict[str, Any]:
            noisy = kind(sigma).draw(sums(), seed)
            return {**told, "noise_multiplier": sigma, "sums": list(noisy.values())}

        return once(ledger, mechanism, draw, number)

    @cached_property
    def _histogram(self) -> NearestNeighbourHistogram:
        turns = self._turns
        parts = (
            self._embed([turn.utterance for turn in turns[start : start + _EMBEDDED_TOGETHER]])
            for start in range(0, len(turns), _EMBEDDED_TOGETHER)
        )
        labels = None if self._labels is None else [turn.label for turn in self._turns]
        return NearestNeighbourHistogram(parts, [turn.unit for turn in turns], labels)
