"""How many texts to draw for those that are wanted: of a topic, or that say some words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from commands.privacy.histogram import read_shares
from commands.run_folder.steps import SHARES
from commands.run_folder.systems import System
from doppel.errors import UserError
from doppel.files import read_json_lines
from doppel.text.words import words_of

#: Texts for each one of a topic: the model's share of it differs from the released one, which noise can make tiny.
_MARGIN, _MOST = 1.3, 200
#: Texts that are written for words, at most, for each sample that the run has.
_TIMES_OWN = 10


def for_topic(run: Path, system: System, topic: str) -> int:
    """Return how many texts to draw for one of a topic, by its released share."""
    told = read_shares(run / system.scope / "one_stage" / SHARES)
    share = (told["sums"] or {}).get(topic, 0.0) / told["num_units"]
    return min(_MOST, math.ceil(_MARGIN / share)) if share > 0 else _MOST


@dataclass(frozen=True)
class Saying:
    """How rare some words are in the run's own samples, and what follows for a draw.

    Attributes:
        found: Samples that say all of them.
        num_samples: Of so many.
        oversample: Texts to write for each that says them.
        most_draws: How often, at most, so that ten texts for each of the run's samples are the limit; once, and as
            many as the run has, where none says them.
    """

    found: int
    num_samples: int
    oversample: int
    most_draws: int


def for_words(samples: Path, words: Sequence[str], num: int) -> Saying:
    """Tell how rare words are in a run's samples.

    Args:
        samples: The run's own.
        words: Words.
        num: Samples that are to say all of them.

    Raises:
        UserError: One is no word.
    """
    for word in words:
        if words_of(word) != [word]:
            raise UserError(
                f"--words has {word!r}: give words in letters alone, with a comma between, such as rental,car"
            )
    texts = [str(line.get("utterance")) for _, line in read_json_lines(samples)]
    found = sum(set(words) <= set(words_of(text)) for text in texts)
    if not found:
        return Saying(0, len(texts), max(1, math.ceil(len(texts) / num)), 1)
    limit = max(num, _TIMES_OWN * len(texts))
    oversample = min(_MOST, math.ceil(_MARGIN * len(texts) / found), limit // num)
    return Saying(found, len(texts), oversample, max(1, limit // (num * oversample)))
