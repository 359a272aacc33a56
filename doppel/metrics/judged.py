"""What models of public text say of samples: MAUVE in the features of each, and fluency, beside human turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from doppel.metrics.mauve import INSTALL, Featurizer, has_mauve, mauve
from doppel.metrics.plain_number import plain_number
from doppel.models.encoders import TextFeaturizer

Value = float | int | str | list[str] | None
Part = tuple[dict[str, Value], list[str]]
"""Values by name, and notes on them."""
Texts = Sequence[str]
Floats = NDArray[np.float64]
Nats = Callable[[Texts], Sequence[float]]
"""The loss of each text under a language model of public text, in nats."""
_FEW_FOR_MAUVE = 1000
_QUANTILE = 0.95


def mauve_metrics(
    synthetic: Texts,
    reference: Texts,
    human: tuple[Texts, Texts],
    featurizers: Mapping[str, str | Path | Featurizer],
    seed: int,
) -> Part:
    """Compute MAUVE of samples with each judge's features, ``mauve_NAME``, and of human turns, ``human_mauve_NAME``.

    Args:
        synthetic: Samples.
        reference: As many human requests.
        human: Two disjoint sets of human requests of equal size, whose value is the one to compare with.
        featurizers: Name of a judge → how it reads texts.
        seed: Added to 25, the seed of the package ``mauve-text``.
    """
    if not featurizers:
        return {}, ["there is no MAUVE: it was not asked for, or nothing is at hand whose features it could take"]
    if not has_mauve():
        names = [f"{side}mauve_{name}" for name in featurizers for side in ("", "human_")]
        return dict.fromkeys(names), [f"MAUVE is left out, for it is not installed: {INSTALL}"]
    values: dict[str, Value] = {}
    for name, featurizer in featurizers.items():
        read = TextFeaturizer(featurizer) if isinstance(featurizer, str | Path) else featurizer
        values[f"mauve_{name}"] = plain_number(mauve(synthetic, reference, read, seed=25 + seed))
        values[f"human_mauve_{name}"] = plain_number(mauve(*human, read, seed=25 + seed)) if all(human) else None
    notes = []
    if None in (values[f"mauve_{name}"] for name in featurizers):
        notes.append("there is no MAUVE: one side has only empty utterances, or both have hardly a different one")
    elif len(synthetic) < _FEW_FOR_MAUVE:
        few = (
            f"MAUVE compares {len(synthetic)} samples with as many human requests: below {_FEW_FOR_MAUVE:,} it is rough"
        )
        notes.append(f"{few}, and only values of equal numbers compare")
    return values | {"human_num_compared": len(human[0])}, notes


def fluency_metrics(synthetic: Texts, reference: Texts, human: tuple[Texts, Texts], nats: Nats) -> Part:
    """Compute the cross-entropy per word of both sides, and the share of samples above the human 95th-percentile loss.

    ``fluency`` is the sum of the losses of all texts over the number of their words. ``fluency_outliers`` is the share
    of samples above the human 95th-percentile loss; of human requests it is 5 % but for chance.

    Args:
        synthetic: Samples.
        reference: Human turns.
        human: Two sets of human turns, apart: the first is judged by the quantile of the second.
        nats: See :data:`Nats`.
    """
    return {
        "fluency": nats_a_word(synthetic, nats),
        "reference_fluency": nats_a_word(reference, nats),
        "fluency_outliers": outliers(synthetic, reference, nats),
        "human_fluency_outliers": outliers(*human, nats) if all(human) else None,
    }, []


def nats_a_word(texts: Texts, nats: Nats) -> float | None:
    """Return the loss of all texts over the number of their words; None without a word."""
    words = sum(len(text.split()) for text in texts)
    return plain_number(sum(nats(texts)) / words) if words else None


def outliers(texts: Texts, human: Texts, nats: Nats) -> float | None:
    """Return the share of texts above the human 95th-percentile loss at equal length.

    Args:
        texts: What is judged.
        human: What is usual.
        nats: See :data:`Nats`.
    """
    texts, human = ([text for text in side if text.split()] for side in (texts, human))
    if not texts or len(human) < 2:
        return None
    above, usual = excess_nats(texts, human, nats)
    return plain_number(float((above > np.quantile(usual, _QUANTILE)).mean()))


def excess_nats(texts: Texts, human: Texts, nats: Nats) -> tuple[Floats, Floats]:
    """Return how far the loss of each text lies above what is usual among human texts of as many words, in nats.

    The loss of a text grows with its length, and the loss a word falls with it, since the first words are the least
    expected: by either alone long texts or short ones would stand out. So a line through the losses of the human texts
    over their numbers of words says what is usual.

    Args:
        texts: N texts that are judged.
        human: M texts, at least two.
        nats: See :data:`Nats`.

    Returns:
        Of the texts, [N], and of the human ones, [M], up to one and the same constant.
    """
    words = [np.array([len(text.split()) for text in side], dtype=np.float64) for side in (texts, human)]
    losses = [np.array(nats(side), dtype=np.float64) for side in (texts, human)]
    moments = np.cov(words[1], losses[1])
    slope = moments[0, 1] / moments[0, 0] if moments[0, 0] else 0.0
    above, usual = (loss - slope * number for loss, number in zip(losses, words, strict=True))
    return above, usual
