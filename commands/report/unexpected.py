"""What nobody expected: released words that samples say together, with samples that say them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from typing import Any

from commands.privacy.coverage import gaps, ledger_of
from commands.report.asked import Sample, examples, word_shares
from commands.run_folder.run_folder import RunFolder
from doppel.text.unexpected import TIMES
from doppel.text.words import words_of

#: Two words belong together where so many of the samples that say the rarer one say both.
_TOGETHER = 0.2
_FEWEST = 2


def read_unexpected(record: RunFolder, budget: str, samples: Sequence[Sample]) -> dict[str, Any] | None:
    """Read the words that a budget has released.

    Formal guarantees:
        What is read was released with noise, is in the ledger and is as its step made it. Grouping by samples of a
        private model is post-processing.

    Args:
        record: The run.
        budget: The ledger's scope.
        samples: Its samples.

    Returns:
        The release as its step wrote it, and ``findings``: words that belong together, with ``samples`` that say
        them. None where the run has released none.
    """
    manifest, ledger = record.manifest, ledger_of(record)
    for entry in manifest.find("metrics", verb="words"):
        if entry.budget != budget or not manifest.path(entry).is_file() or gaps(manifest, ledger, entry):
            continue
        told = json.loads(manifest.path(entry).read_text(encoding="utf-8"))
        words = {word["word"]: word for word in told["words"]}
        word_of = {form: word for word, line in words.items() for form in line.get("forms", [word])}
        texts = [frozenset(word_of[form] for form in words_of(x.utterance) if form in word_of) for x in samples]
        everywhere, found = word_shares(samples), []
        for own in findings([*words], texts):
            said = [sample for sample, text in zip(samples, texts, strict=True) if not text.isdisjoint(own)]
            found.append({"words": [words[word] for word in own], "samples": examples(said, everywhere)})
        return {**told, "times": TIMES, "findings": found}
    return None


def findings(words: Sequence[str], texts: Sequence[frozenset[str]]) -> list[list[str]]:
    """Group words that samples say together, by what each of them says; their order is kept."""
    said = {word: {i for i, text in enumerate(texts) if word in text} for word in words}

    def belong(one: str, other: str) -> bool:
        fewer = min(len(said[one]), len(said[other]))
        return len(said[one] & said[other]) >= max(_FEWEST, _TOGETHER * fewer)

    groups: list[list[str]] = []
    for word in words:
        near = [group for group in groups if any(belong(word, other) for other in group)]
        groups = [*(group for group in groups if group not in near), [*chain(*near), word]]
    groups = [sorted(group, key=words.index) for group in groups]
    return sorted(groups, key=lambda group: words.index(group[0]))
