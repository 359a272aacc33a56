"""The rankers of words, by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from doppel.redaction.mask import Ranker
from doppel.redaction.rank import LogisticRanker, OcclusionRanker, WordClassifier

RankerName = Literal["logistic", "occlusion", "gradient", "learned"]
#: Those that read words by a sentence encoder.
WITH_ENCODER: tuple[RankerName, ...] = ("gradient", "learned")


def learn_ranker(
    name: RankerName,
    sensitive: Sequence[str],
    safe: Sequence[str],
    *,
    encoder: str | None = None,
    level: float = 0.1,
    seed: int = 1,
) -> Ranker:
    """A ranker that has learnt from texts of both sets. Where these are private, so is the ranker.

    Args:
        name: ``logistic`` and ``occlusion`` (:mod:`~doppel.redaction.rank`), ``gradient`` and ``learned``
            (:mod:`~doppel.redaction.encoder_rank`).
        sensitive: Texts; likewise ``safe``.
        encoder: Folder or hub name of the sentence encoder of those :data:`WITH_ENCODER`.
        level: Share of the words that ``learned`` learns to hide.
        seed: Of ``learned``.

    Raises:
        DataError: A set is empty, or has no word.
        ModelError: The encoder cannot be loaded.
    """
    if name not in WITH_ENCODER:
        classifier = WordClassifier.fit(sensitive, safe)
        return LogisticRanker(classifier) if name == "logistic" else OcclusionRanker(classifier)
    from transformers import AutoModel

    from doppel.models import load
    from doppel.redaction.encoder_rank import EncoderClassifier, GradientRanker, LearnedRanker, WordStates

    if encoder is None:
        raise ValueError(f"the ranker {name} reads words by an encoder: give one")
    of_states = EncoderClassifier(WordStates(*load(encoder, AutoModel)), sensitive, safe)
    return GradientRanker(of_states) if name == "gradient" else LearnedRanker(of_states, level, seed)
