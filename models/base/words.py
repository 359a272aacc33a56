"""Write the vocabulary of :mod:`doppel.words`: words of public English utterances, and in how many they are.

    python -m models.base.words UTTERANCES

UTTERANCES is the file of public utterances that the base model learnt from (README.md).
"""

from __future__ import annotations

import gzip
import sys
from collections import Counter
from pathlib import Path

from doppel.files import read_list
from doppel.words import ENGLISH, words_of

#: Utterances that a word is in at least: rarer ones are mostly misspelt.
_FEWEST = 5


def main(path: Path) -> None:
    """Write the file that the package ships, the most frequent word first."""
    counts = Counter(word for text in read_list(path) for word in set(words_of(text)))
    lines = [
        f"{word} {n}\n" for word, n in sorted(counts.items(), key=lambda item: (-item[1], item[0])) if n >= _FEWEST
    ]
    ENGLISH.write_bytes(gzip.compress("".join(lines).encode(), mtime=0))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
