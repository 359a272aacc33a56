"""What nobody expected: released words that samples say together, with samples that say them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from commands.privacy.coverage import gaps, ledger_of
from commands.runs.run_record import RunRecord
from doppel.words import TIMES, Word, findings, saying

_SAMPLES = 3


@dataclass(frozen=True)
class Finding:
    """Words that belong together.

    Attributes:
        words: The most frequent first.
        samples: Samples that say most of them.
    """

    words: list[Word]
    samples: list[str]


@dataclass(frozen=True)
class Unexpected:
    """What a run found that its reference hardly says.

    Attributes:
        findings: The most frequent first.
        told: The release: ``least`` share that shows, ``num_units``, ``unit``, ``noise_multiplier``, ``per_unit``,
            ``num_words``.
        times: How many times its share in the reference a word has to have.
    """

    findings: list[Finding]
    told: dict[str, Any]
    times: float = TIMES


def read_unexpected(record: RunRecord, budget: str, samples: Sequence[str]) -> Unexpected | None:
    """Read the words that a budget has released.

    Formal guarantees:
        What is read was released with noise, is in the ledger and is as its step made it. Grouping by samples of a
        private model is post-processing.

    Args:
        record: The run.
        budget: The ledger's scope.
        samples: Texts of its samples.

    Returns:
        None where the run has released none.
    """
    manifest, ledger = record.manifest, ledger_of(record)
    for entry in manifest.find("metrics", verb="words"):
        if entry.budget != budget or not manifest.path(entry).is_file() or gaps(manifest, ledger, entry):
            continue
        told = json.loads(manifest.path(entry).read_text(encoding="utf-8"))
        words = {word["word"]: Word(**word) for word in told["words"]}
        groups = findings(words, samples)
        return Unexpected([Finding([words[w] for w in own], saying(own, samples, _SAMPLES)) for own in groups], told)
    return None
