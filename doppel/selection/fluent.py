"""Of more samples than are wanted, those as fluent as people are, without changing how many there are of a kind.

A sample's *place* is the share of human texts of its length that a public language model expects better: .5 is the
median of people, 1 is less fluent than each of them.

Formal guarantees:
    Samples are those of a private model, human texts and the language model are public, and what is drawn is a
    function of them and of a seed: post-processing, which costs no ε.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from doppel.metrics.judged import Nats, Texts

#: Place up to which a sample is fluent: as half of people's texts are.
FLUENT = 0.5
#: Field of a line that tells its place.
PLACE = "place"
#: Bands of length in which samples are compared: fifths of people's texts.
_BANDS = 5


def places_among(texts: Texts, human: Texts, nats: Nats) -> list[float]:
    """Return the place of each text among human ones of its length, in 0…1; 1 of one without a word.

    Args:
        texts: N texts.
        human: M texts, at least two with a word.
        nats: The loss of each text under a language model of public text.

    Returns:
        N places, see :func:`~doppel.metrics.judged.excess_nats` for "of its length".
    """
    from doppel.metrics.judged import excess_nats  # needs torch, which no --help waits for

    human = [text for text in human if text.split()]
    above, usual = excess_nats(texts, human, nats)
    found = np.searchsorted(np.sort(usual), above, side="left") / len(usual)
    return [float(place) if text.split() else 1.0 for place, text in zip(found, texts, strict=True)]


def bands_of(texts: Texts, human: Texts) -> list[int]:
    """Return the band of length of each text: in which fifth of the human ones it would be, by its words."""
    edges = np.quantile([len(text.split()) for text in human], np.arange(1, _BANDS) / _BANDS)
    return [int(band) for band in np.searchsorted(edges, [len(text.split()) for text in texts], side="left")]


def prefer_fluent(
    drawn: Sequence[int], kinds: Sequence[Hashable], places: Sequence[float], seed: int | None = None
) -> list[int]:
    """Return other samples of the kinds that were drawn, as many of each: fluent ones, then the nearest to it.

    Uniformly among those that are fluent, so that a likelier text is not kept more often than the model says it.

    Args:
        drawn: Numbers of the samples that would be kept.
        kinds: Of each of N samples what is to stay: its topic or label, and band of length.
        places: Of each, see :func:`places_among`.
        seed: Of the draw among equals.

    Returns:
        As many numbers as were drawn, rising; one twice only where its kind has fewer than are drawn of it.
    """
    members: dict[Hashable, list[int]] = {}
    for number, kind in enumerate(kinds):
        members.setdefault(kind, []).append(number)
    rng, found = random.Random(seed), list[int]()
    for kind, count in sorted(Counter(kinds[number] for number in drawn).items(), key=repr):
        own = members[kind]
        rng.shuffle(own)
        own.sort(key=lambda number: max(0.0, places[number] - FLUENT))
        found += (own * -(-count // len(own)))[:count]
    return sorted(found)
