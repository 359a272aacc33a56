"""How many samples lie among human requests, which even few samples tell."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

from doppel.metrics.mauve import Featurizer
from doppel.metrics.plain_number import plain_number

#: The neighbour up to which a human request reaches.
_NEIGHBOUR = 3
#: Human requests that reach somewhere, and others that are judged as samples are, at most.
_MOST = 1000


def precision_metrics(
    synthetic: Sequence[str], reference: Sequence[str], featurizer: Featurizer, name: str, seed: int
) -> dict[str, float | int | str | list[str] | None]:
    """Compute the precision of samples, ``precision_NAME``, and of human turns, ``human_precision_NAME``.

    Improved precision (Kynkäänniemi et al. 2019, section 3.1): the share of texts that are no farther from some human
    request than the third nearest of the others is from it, by the cosine of their features. MAUVE of fewer than some
    300 texts tells nothing; this is a share, of which every single text is one trial, against all of the reference.

    Args:
        synthetic: Samples; one without words is outside.
        reference: Human turns: one half of them, at most 1,000, reaches; as many others are judged for comparison.
        featurizer: From texts to a [num_texts, hidden] tensor.
        name: Of the judge.
        seed: Of the halves.

    Returns:
        Both values; None where the reference holds too few turns.
    """
    texts = [text for text in reference if text.strip()]
    half = min(len(texts) // 2, _MOST)
    found = dict.fromkeys((f"precision_{name}", f"human_precision_{name}"))
    if half <= _NEIGHBOUR or not synthetic:
        return {**found}
    drawn = random.Random(seed).sample(texts, 2 * half)
    human_MD, others_MD = (normalize(featurizer(side).double()) for side in (drawn[:half], drawn[half:]))
    reach_M = _distances(human_MD, human_MD).kthvalue(_NEIGHBOUR + 1).values  # the first is its own
    said = [text for text in synthetic if text.strip()]
    num_inside = _num_inside(normalize(featurizer(said).double()), human_MD, reach_M) if said else 0
    values = num_inside / len(synthetic), _num_inside(others_MD, human_MD, reach_M) / half
    return dict(zip(found, map(plain_number, values), strict=True))


def _num_inside(texts_ND: Tensor, human_MD: Tensor, reach_M: Tensor) -> int:
    return int((_distances(texts_ND, human_MD) <= reach_M).any(dim=1).sum())


def _distances(one_ND: Tensor, other_MD: Tensor) -> Tensor:
    """Distances that are 0 between equal texts, which products are not."""
    return torch.cdist(one_ND, other_MD, compute_mode="donot_use_mm_for_euclid_dist")
