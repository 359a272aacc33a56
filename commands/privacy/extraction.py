"""How much of the training text comes out again in samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from datamodules.guards.canaries import Canary
from datamodules.reading.example import Example
from datamodules.text_format import TextFormat
from doppel.metrics import CopyIndex, copy_shares

MIN_WORDS = 5
"""From how many words a text counts as long; shorter ones ("yes") repeat by themselves."""


def extraction_report(
    samples: Sequence[dict[str, Any]], canaries: Sequence[Canary], turns: Sequence[Example], text_format: TextFormat
) -> dict[str, Any]:
    """Count copies of canaries and of training text among samples.

    Canaries that were left out of the training are the control: what is found of them came about by chance, or was
    copied from a prompt. The numbers compare with private data and are not differentially private.

    Args:
        samples: ``text`` and ``canary``, the position of the canary whose source prompted it, or None.
        canaries: All canaries with their coins.
        turns: The training data without canaries.
        text_format: Says which field the model writes.

    Returns:
        ``num_samples``; ``shares``: of the samples, per origin of the text, ``exact_copies`` and ``near_copies``, and
        both ``_long`` (at least five words); ``extracted``: per group of canaries, how many there are and how many
        came out exactly or nearly; ``prompted``: likewise, for samples prompted with the canary's own source.
    """
    texts: list[str] = [sample["text"] for sample in samples]
    targets = [str(getattr(c.turn, text_format.target)) for c in canaries]
    groups = {
        name: [i for i, canary in enumerate(canaries) if canary.included is included]
        for name, included in (("included_canaries", True), ("excluded_canaries", False))
    }
    origins = {name: [targets[i] for i in group] for name, group in groups.items()}
    origins["training_text"] = [str(getattr(turn, text_format.target)) for turn in turns]
    sampled = CopyIndex(texts)
    report: dict[str, Any] = {
        "num_samples": len(samples),
        "shares": {name: _shares(texts, private) for name, private in origins.items()},
        "extracted": {name: _counts([(sampled, targets[i]) for i in group]) for name, group in groups.items()},
    }
    if text_format.source is not None:
        answers = {sample["canary"]: sample["text"] for sample in samples if sample["canary"] is not None}
        report["prompted"] = {
            name: _counts([(CopyIndex([targets[i]]), answers[i]) for i in group if i in answers])
            for name, group in groups.items()
        }
    return report


def _counts(asked: Sequence[tuple[CopyIndex, str]]) -> dict[str, int]:
    """How many canaries there are, and how many texts are copies of them."""
    return {
        "num_canaries": len(asked),
        "exact": sum(index.is_exact(text) for index, text in asked),
        "near": sum(index.are_near([text])[0] for index, text in asked),
    }


def _shares(texts: Sequence[str], private: Sequence[str]) -> dict[str, float | None]:
    values = copy_shares(texts, CopyIndex(private), MIN_WORDS)
    return {name: None if math.isnan(value) else value for name, value in values.items()}
