"""Share of the reference's words that the synthetic utterances use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from doppel.metrics.type_counts import TypeCountMetric, type_overlap


def count_words(utterances: Iterable[str]) -> Counter[str]:
    """Occurrences of words: utterances split on spaces, case and punctuation kept."""
    return Counter(word for utterance in utterances for word in utterance.split(" ") if word)


class WordOverlap(TypeCountMetric):
    """W.Overlap = |V_syn ∩ V_hum| / |V_hum| over word types (Mireshghallah et al.), in [0, 1].

    It grows with the number of samples: compare systems on equally many. nan without a reference.
    """

    higher_is_better = True

    def update(self, synthetic: Sequence[str] = (), reference: Sequence[str] = ()) -> None:
        """Add utterances to either side."""
        self.add_counts("synthetic", count_words(synthetic))
        self.add_counts("reference", count_words(reference))

    def compute(self) -> Tensor:
        """Scalar share over everything added so far."""
        return torch.tensor(type_overlap(self.counts("synthetic"), self.counts("reference")))
