"""Metrics that compare how often types occur in two sets of samples: their base, and the overlap of words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from doppel.metrics.string_state import StringStateMetric, pack_strings, unpack_strings

Side = Literal["synthetic", "reference"]


class TypeCountMetric(StringStateMetric):
    """Counts types on two sides; heirs say what a type is and what to compute from the two counters.

    Heirs given the same counts have the same states, so they may share one compute group of a
    ``torchmetrics.MetricCollection``.
    """

    def __init__(self, **kwargs: Any) -> None:
        """Args: kwargs: passed to ``torchmetrics.Metric``."""
        super().__init__(**kwargs)
        for side in ("synthetic", "reference"):
            self.add_list_state(f"{side}_types", torch.uint8)
            self.add_list_state(f"{side}_counts", torch.int64)

    def add_counts(self, side: Side, counts: Mapping[str, int]) -> None:
        """Add occurrences of types to one side."""
        self.append_state(f"{side}_types", pack_strings(counts))
        self.append_state(f"{side}_counts", torch.tensor(list(counts.values()), dtype=torch.int64))

    def counts(self, side: Side) -> Counter[str]:
        """All occurrences on one side, over all updates (and all ranks inside ``compute``)."""
        total: Counter[str] = Counter()
        types = unpack_strings(self.joined_state(f"{side}_types"))
        for name, count in zip(types, self.joined_state(f"{side}_counts").tolist(), strict=True):
            total[name] += count
        return total


def type_overlap(synthetic: Counter[str], reference: Counter[str]) -> float:
    """|V_syn ∩ V_ref| / |V_ref|: the share of the reference's types in the samples (nan: no reference)."""
    if not reference:
        return float("nan")
    return len(synthetic.keys() & reference.keys()) / len(reference)


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
