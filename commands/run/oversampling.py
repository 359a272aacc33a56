"""How many texts to draw for those that are wanted: of a topic, or that say some words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from commands.privacy.histogram import read_shares
from commands.run_folder.systems import System
from doppel.errors import UserError
from doppel.files import read_json_lines
from doppel.words import words_of

#: Texts for each one of a topic: the model's share of it differs from the released one, which noise can make tiny.
_MARGIN, _MOST = 1.3, 200


def for_topic(run: Path, system: System, topic: str) -> int:
    """Return how many texts to draw for one of a topic, by its released share."""
    told = read_shares(run / system.scope / "one_stage" / "marginals.json")
    share = (told["sums"] or {}).get(topic, 0.0) / told["num_units"]
    return min(_MOST, math.ceil(_MARGIN / share)) if share > 0 else _MOST


def for_words(samples: Path, words: Sequence[str]) -> int:
    """Texts to write for each that says all of some words, by how many of the run's own samples do.

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
    return min(_MOST, math.ceil(_MARGIN * len(texts) / found)) if found else _MOST
