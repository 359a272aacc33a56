"""What an experiment can set of counts that are released: shares, topics, words and attributes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from doppel.errors import UserError
from doppel.settings.facts import setting


@dataclass(frozen=True)
class Resampling:
    """Resample an over-sample to DP shares of function types, or of clusters: see ``docs/systems.md``.

    Args:
        noise_multiplier: Noise multiplier of the shares, which are charged to the budget of each system.
        oversample: Samples written for each one kept.
        of: ``trees``, for systems that have them; ``utterances``, parsed by ``public_parser``; or ``votes``, where each
            private text votes for its nearest cluster of samples.
        clusters: Number of clusters, for ``votes``.
        encoder: Sentence encoder, for ``votes``.
    """

    noise_multiplier: float = 10.0
    oversample: int = 20
    of: Literal["trees", "utterances", "votes"] = "trees"
    clusters: int = 100
    encoder: str = setting("minilm", path=True, words=("minilm",))

    def __post_init__(self) -> None:
        _check_shares("resampling", self.noise_multiplier, self.oversample)
        if self.clusters < 2:
            raise UserError(f"resampling.clusters is {self.clusters}: give at least 2")

    @property
    def draws_trees(self) -> bool:
        """Whether trees are drawn, and an utterance is written for each; else utterances are."""
        return self.of == "trees"


@dataclass(frozen=True)
class Topics:
    """Settings of the system ``topics``: see ``python cli.py step resample --help``.

    Args:
        num_topics: Number of topics, some four a theme; where samples are unlike all public requests, up to an eighth
            as many are added that nobody expected.
        texts: Public requests from which themes and topics are made, together with the over-sample where they are fewer
            than five a topic; null: the reference; ``samples``: the over-sample alone.
        encoder: Sentence encoder.
        noise_multiplier: Noise multiplier of the topics' shares.
        oversample: Samples written for each one kept.
    """

    draws_trees = False  # as of a resampling
    num_topics: int = 80
    texts: str | None = setting(None, path=True, words=("samples",))
    encoder: str = setting("minilm", path=True, words=("minilm",))
    noise_multiplier: float = 10.0
    oversample: int = 5

    def __post_init__(self) -> None:
        _check_shares("topics", self.noise_multiplier, self.oversample)
        if self.num_topics < 2:
            raise UserError(f"topics.num_topics is {self.num_topics}: give at least 2")

    def public_texts(self, reference: str | None) -> str | None:
        """Return the public file that the codebook is made of beside the over-sample, if any."""
        return None if self.texts == "samples" else self.texts or reference


@dataclass(frozen=True)
class Words:
    """Release the words that private requests say and the reference hardly does: see ``docs/systems.md``.

    Args:
        noise_multiplier: Noise multiplier of their counts, which are charged to the budget of each system; more of it
            where they would take more than a tenth of the budget, which is so at ε = 2 and less
            (2.5, as own-data.yaml has it: 5).
        per_unit: Words that a unit gives, at most: those of its text that the fewest texts of the reference say.
        vocabulary: Public words, one a line, such as ``taxi``; of words that the reference says equally rarely the
            earlier is given; null: 160,231 English forms, the rarest first, without function words. A word that it
            lacks is never shown.
    """

    noise_multiplier: float = 5.0
    per_unit: int = 2
    vocabulary: str | None = setting(None, path=True)

    def __post_init__(self) -> None:
        _check_shares("words", self.noise_multiplier, 1)
        if self.per_unit < 1:
            raise UserError(f"words.per_unit is {self.per_unit}: give at least 1")


@dataclass(frozen=True)
class Attributes:
    """Settings of the system ``attributes``: see ``docs/systems.md``.

    Args:
        schema: YAML file of attributes with their public values, as ``python cli.py metadata --schema`` takes it.
        share: Share of the budget for the table of attributes, as a part of μ², where μ is that of one Gaussian release
            that costs all of ε. The training uses the rest.
    """

    schema: str = field(metadata={"path": True})
    share: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise UserError(f"attributes.share is {self.share}: give a share between 0 and 1, such as 0.1")


def _check_shares(name: str, noise_multiplier: float, oversample: int) -> None:
    if not 0 < noise_multiplier < math.inf:
        raise UserError(f"{name}.noise_multiplier is {noise_multiplier}: give a finite number above 0")
    if oversample < 1:
        raise UserError(f"{name}.oversample is {oversample}: give at least 1")
